//! Program profiles: shipped ones by name, and files. Only the `[program]` table is used here; `quell apply` uses the
//! rest.

use std::path::Path;

use quell_linux::visible;
use quell_mode::profile::{Profile, ProgramProfile, Source};

use crate::exit::Failure;
use crate::file;
use crate::output;

pub(crate) const SHIPPED: [(&str, &str); 4] = [
    ("haproxy", include_str!("../../../../profiles/haproxy.toml")),
    ("memcached", include_str!("../../../../profiles/memcached.toml")),
    ("nginx", include_str!("../../../../profiles/nginx.toml")),
    ("redis", include_str!("../../../../profiles/redis.toml")),
];

/// Reads the `[program]` table of a shipped profile, or of a file, which contains `/` or ends in `.toml`.
pub(crate) fn read(named: &str) -> Result<ProgramProfile, Failure> {
    let source = source(named)?;
    let profile = Profile::parse(&[source]);
    let profile = profile.map_err(|error| Failure::usage(format!("{error}\n{}", error.caret())))?;
    let nothing = || Failure::usage(format!("profile {named} has no [program] table"));
    let program = profile.program.ok_or_else(nothing)?;
    if let Some(elsewhere) = &program.found_elsewhere {
        output::say(&format!(
            "this mode was not measured on this program: {}; compare it here with `quell bench --pid PID`",
            visible::name(&elsewhere.value)
        ));
    }
    Ok(program)
}

fn source(named: &str) -> Result<Source, Failure> {
    if named.contains('/') || named.ends_with(".toml") {
        return Ok(Source::new(visible::name(named), file::read(Path::new(named), file::BY_HAND_MAX)?));
    }
    let shipped = SHIPPED.iter().find(|(name, _)| *name == named);
    let (name, text) = shipped.ok_or_else(|| {
        let names = SHIPPED.map(|(name, _)| name).join(", ");
        Failure::usage(format!("unknown profile {named}; shipped profiles: {names}; write a file as ./{named}.toml"))
    })?;
    Ok(Source::new(format!("{name}.toml"), *text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_profile_has_a_program_table_with_a_mode() {
        for (name, _) in SHIPPED {
            let program = read(name).unwrap_or_else(|failure| panic!("{}", failure.text));
            assert!(program.mode.is_some(), "{name}");
        }
    }
}
