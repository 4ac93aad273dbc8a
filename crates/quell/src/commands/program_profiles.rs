//! Program profiles: shipped ones by name, and files. Only the `[program]` table is used here; `quell apply` uses the
//! rest.

use std::path::Path;

use quell_linux::shell;
use quell_linux::visible;
use quell_mode::did_you_mean;
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
    profile.program.ok_or_else(nothing)
}

/// If the mode of a profile was found elsewhere, says so, and how to compare it on this program: `options` are those of
/// `quell bench` before `--modes`, `command` the words after.
pub(crate) fn say_where_found(program: &ProgramProfile, options: &[String], command: &[String]) {
    let Some((elsewhere, mode)) = program.found_elsewhere.as_ref().zip(program.mode.as_ref()) else { return };
    let modes = format!("base,{}", mode.value);
    let words = ["quell", "bench"].into_iter().chain(options.iter().map(String::as_str));
    let words = words.chain(["--modes", &modes]).chain(command.iter().map(String::as_str));
    output::say(&format!(
        "this mode was not measured on this program: {}; compare it here:\n  {}",
        visible::name(&elsewhere.value),
        shell::command(words)
    ));
}

fn source(named: &str) -> Result<Source, Failure> {
    if named.contains('/') || named.ends_with(".toml") {
        return Ok(Source::new(visible::name(named), file::read(Path::new(named), file::BY_HAND_MAX)?));
    }
    let shipped = SHIPPED.iter().find(|(name, _)| *name == named);
    let (name, text) = shipped.ok_or_else(|| {
        let names = SHIPPED.map(|(name, _)| name).join(", ");
        let near = did_you_mean(named, SHIPPED.map(|(name, _)| name));
        Failure::usage(format!(
            "unknown profile {named}{near}; shipped profiles: {names}; write a file as ./{named}.toml"
        ))
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
