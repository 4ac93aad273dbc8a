//! Where the workers of programs are to get their connections and run: options that `quell attach` and `quell run` share.

use clap::Args;
use quell_host::attach::placement::Wanted;

/// Where the workers get their connections and run.
#[derive(Debug, Args)]
pub(super) struct PlacementArgs {
    /// Give each worker the connections of its own queue, by a filter on the reuseport groups of the programs; of these
    /// devices' queues [default: all that lead there]
    #[arg(long, value_name = "DEVICE,…", num_args = 0..=1, require_equals = true, value_delimiter = ',')]
    steer: Option<Vec<String>>,
    /// Bind each worker to the CPUs of the queue by which its connections come.
    #[arg(long)]
    pin: bool,
}

impl PlacementArgs {
    pub(super) fn is_asked_for(&self) -> bool {
        self.steer.is_some() || self.pin
    }

    pub(super) fn wanted(&self) -> Wanted {
        Wanted { steer: self.steer.clone(), pin: self.pin }
    }
}
