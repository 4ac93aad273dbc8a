//! The profiles of programs: those that this program carries, by name, and files. Only their program's half matters here;
//! the host's half is for `quell apply`.

use std::path::Path;

use quell_linux::visible;
use quell_mode::profile::{Profile, ProgramProfile, Source};

use crate::exit::Failure;
use crate::file;

/// By name, as they stand in `profiles/`.
const SHIPPED: [(&str, &str); 4] = [
    ("haproxy", include_str!("../../../../../profiles/haproxy.toml")),
    ("memcached", include_str!("../../../../../profiles/memcached.toml")),
    ("nginx", include_str!("../../../../../profiles/nginx.toml")),
    ("redis", include_str!("../../../../../profiles/redis.toml")),
];

/// The program's half of a profile: a shipped one by its name, or a file, which is told by a `/` or its ending.
///
/// # Errors
/// When there is none, it cannot be read, or it has no program's half.
pub(super) fn read(named: &str) -> Result<ProgramProfile, Failure> {
    let source = source(named)?;
    let profile = Profile::parse(&[source]);
    let profile = profile.map_err(|error| Failure::usage(format!("{error}\n{}", error.caret())))?;
    let nothing =
        || Failure::usage(format!("the profile {named} says nothing of a program: it has no [program] table"));
    profile.program.ok_or_else(nothing)
}

fn source(named: &str) -> Result<Source, Failure> {
    if named.contains('/') || named.ends_with(".toml") {
        return Ok(Source::new(visible::name(named), file::read(Path::new(named), file::BY_HAND_MAX)?));
    }
    let shipped = SHIPPED.iter().find(|(name, _)| *name == named);
    let (name, text) = shipped.ok_or_else(|| {
        let names = SHIPPED.map(|(name, _)| name).join(", ");
        Failure::usage(format!("no profile is called {named}; there are {names}, and files (./{named}.toml)"))
    })?;
    Ok(Source::new(format!("{name}.toml"), *text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_profile_has_a_programs_half_with_a_mode() {
        for (name, _) in SHIPPED {
            let program = read(name).unwrap_or_else(|failure| panic!("{}", failure.text));
            assert!(program.mode.is_some(), "{name}");
        }
    }
}
