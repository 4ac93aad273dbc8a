//! Options of `quell attach`, `run`, `bench` and `tune` for steering connections and pinning workers.

use clap::Args;
use quell_host::attach::placement::Wanted;
use quell_host::steer::SteerRequest;

/// Placement of connections and workers.
#[derive(Debug, Default, Args)]
pub(crate) struct PlacementArgs {
    /// Steer the connections of each receive queue to its own worker, by a filter on the programs' reuseport groups.
    /// Optionally only for queues of these devices.
    #[arg(long, value_name = "DEVICE,…", num_args = 0..=1, require_equals = true, value_delimiter = ',')]
    steer: Option<Vec<String>>,
    /// Steer UDP groups too. Servers that expect the datagrams of a flow on one socket (QUIC) lose some.
    #[arg(long, requires = "steer")]
    steer_udp: bool,
    /// Replace filters that the server has attached to its groups, until the end.
    #[arg(long, requires = "steer")]
    replace_filter: bool,
    /// Pin each worker to the CPUs of the queue that receives its connections.
    #[arg(long)]
    pin: bool,
}

impl PlacementArgs {
    pub(super) fn is_requested(&self) -> bool {
        self.steer.is_some() || self.pin
    }

    pub(super) fn steers(&self) -> bool {
        self.steer.is_some()
    }

    pub(super) fn steers_udp(&self) -> bool {
        self.steer_udp
    }

    pub(super) fn pins(&self) -> bool {
        self.pin
    }

    pub(super) fn wanted(&self) -> Wanted {
        let request = |devices: &Vec<String>| SteerRequest {
            devices: devices.clone(),
            udp: self.steer_udp,
            replace_filter: self.replace_filter,
        };
        Wanted { steer: self.steer.as_ref().map(request), pin: self.pin }
    }
}
