//! Tests of quell-host from outside, in one binary: each binary costs seconds of linking and tens of megabytes.

#![allow(clippy::unwrap_used, clippy::print_stderr, clippy::expect_used, reason = "helpers of tests fail by panicking")]

mod apply_on_the_kernel;
mod as_profile_on_the_kernel;
mod attach_at_scale_on_the_kernel;
mod attach_beside_churn_on_the_kernel;
mod attach_on_the_kernel;
mod attach_placement_on_the_kernel;
mod attach_plans;
mod attach_receivers;
mod attach_sockets_on_the_kernel;
mod attach_to_what_goes_away_on_the_kernel;
mod causes;
mod causes_on_the_kernel;
mod finding_texts;
mod findings;
mod findings_on_the_kernel;
mod later_queues;
mod local_servers;
mod measured_modes;
mod owned_settings;
mod owners_on_the_kernel;
mod pins_on_the_kernel;
mod plan_model;
mod plans;
mod receivers_on_the_kernel;
mod roles;
mod server_waits;
mod servers;
mod snapshot_against_tools;
mod snapshot_of_a_lab;
mod snapshot_of_this_machine;
mod snapshot_schema;
mod snapshots;
mod sockets_poll_on_the_kernel;
mod stale_queues;
mod stalled_queues;
mod stalls_on_the_kernel;
mod steer_filters_on_the_kernel;
mod steer_on_the_kernel;
mod steered;
mod steering;
mod switching_on_the_kernel;
mod targets_of_cgroups_on_the_kernel;
mod undo_on_the_kernel;
mod workers;
