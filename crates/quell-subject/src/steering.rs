//! Filters of reuseport groups that cannot be attached.

use quell_host::steer::CannotSteer;

/// Why no group of listening sockets can get a filter.
#[derive(Debug, thiserror::Error)]
#[error("nothing can be steered: {}", why(.0))]
pub struct NothingSteered(pub(crate) Vec<CannotSteer>);

fn why(refused: &[CannotSteer]) -> String {
    match refused {
        [] => "the programs have no TCP listener, and no UDP sockets with SO_REUSEPORT".to_owned(),
        refused => refused.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
    }
}
