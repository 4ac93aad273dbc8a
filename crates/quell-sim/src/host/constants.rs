//! Physical constants of a host: costs on its CPUs, and delays of the network and the client. Each has a unit, a range
//! and a meaning. Profile files, the fit and the documentation use this table.

use serde::{Deserialize, Serialize};

/// Definition of a physical constant.
#[derive(Debug, Clone, Copy)]
pub struct Constant {
    /// Name of the constant. It ends with the unit.
    pub name: &'static str,
    /// Smallest valid value.
    pub least: f64,
    /// Largest valid value.
    pub greatest: f64,
    /// Meaning of the constant, in one sentence.
    pub meaning: &'static str,
    read: fn(&Constants) -> f64,
    write: fn(&mut Constants) -> &mut f64,
}

impl Constant {
    /// Finds a constant by name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        CONSTANTS.iter().find(|constant| constant.name == name)
    }

    /// Unit of the constant, derived from its name.
    #[must_use]
    pub fn unit(&self) -> &'static str {
        match self.name {
            name if name.ends_with("_ns") => "ns",
            name if name.ends_with("_ns_per_kib") => "ns per KiB",
            name if name.ends_with("_per_s") => "per s",
            name if name.ends_with("_slope") => "per million requests/s",
            name if name.ends_with("_share") => "share",
            _ => "requests",
        }
    }

    /// Value of this constant in `constants`.
    #[must_use]
    pub fn of(&self, constants: &Constants) -> f64 {
        (self.read)(constants)
    }

    /// Sets the value of this constant in `constants`, clamped to the valid range.
    pub fn set(&self, constants: &mut Constants, value: f64) {
        *(self.write)(constants) = value.clamp(self.least, self.greatest);
    }
}

macro_rules! constants {
    ($($name:ident = $default:literal in $least:literal ..= $greatest:literal: $meaning:literal;)*) => {
        /// Values of all constants on a host.
        #[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct Constants {
            $(#[doc = $meaning] pub $name: f64,)*
        }

        impl Default for Constants {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        /// All constants, in the order in which profile files list them.
        pub const CONSTANTS: &[Constant] = &[
            $(Constant {
                name: stringify!($name),
                least: $least,
                greatest: $greatest,
                meaning: $meaning,
                read: |constants| constants.$name,
                write: |constants| &mut constants.$name,
            },)*
        ];
    };
}

constants! {
    device_irq_ns = 1500.0 in 100.0..=10000.0: "Hard interrupt of the NIC: entry, event queue, scheduling the poll, and enabling the vector again afterwards";
    preempting_irq_ns = 0.0 in 0.0..=20000.0: "Additional cost of such an interrupt on a CPU that runs a thread";
    timer_irq_ns = 300.0 in 50.0..=3000.0: "Interrupt of a timer: entry, expiry, and programming the next event";
    busy_stop_ns = 800.0 in 20.0..=2000.0: "Leaving a busy-poll loop with a timer as backstop: arming or moving the timer, and releasing the NAPI instance";
    napi_poll_ns = 400.0 in 50.0..=5000.0: "One NAPI poll without the cost of its packets: softirq, poll function, and completion";
    busy_poll_ns = 600.0 in 50.0..=5000.0: "One iteration of napi_busy_loop that finds no packets";
    poll_migration_ns = 0.0 in 0.0..=5000.0: "Additional cost of a poll if another CPU polled the queue last";
    rx_request_ns = 1500.0 in 100.0..=10000.0: "Receiving a packet with data, from the ring to the socket";
    rx_ack_ns = 700.0 in 50.0..=5000.0: "Receiving a pure acknowledgement";
    tx_completion_ns = 100.0 in 0.0..=2000.0: "Cleaning one transmit completion";
    wake_ns = 1500.0 in 100.0..=10000.0: "Waking a thread and switching to it";
    idle_exit_ns = 1200.0 in 100.0..=10000.0: "Execution from the interrupt of an idle CPU to its handler; accounted neither as idle nor as busy";
    idle_entry_ns = 600.0 in 0.0..=10000.0: "Execution for choosing and entering an idle state; not accounted as busy";
    epoll_wait_ns = 800.0 in 50.0..=10000.0: "One epoll_wait without the cost of its events, including the application's loop";
    epoll_event_ns = 250.0 in 20.0..=3000.0: "One descriptor of the ready list that epoll_wait examines";
    request_ns = 3000.0 in 100.0..=50000.0: "Serving one request: reading, processing, and sending the response";
    batch_extra_ns = 1200.0 in 0.0..=10000.0: "Additional cost of a request in a batch that displaces everything from the caches";
    batch_packet_ns = 400.0 in 0.0..=10000.0: "Additional cost of receiving a packet on a CPU that serves such a batch";
    batch_half = 120.0 in 1.0..=2000.0: "Number of requests in a batch that causes half of these costs";
    interference_ns = 800.0 in 0.0..=10000.0: "Time that an application loses each time packet processing interrupts it";
    cross_cpu_ns = 600.0 in 0.0..=10000.0: "Additional cost of a request whose packet was received on another CPU, per unit of distance: 1 within a last-level cache, 3 between two";
    contention_ns = 0.0 in 0.0..=10000.0: "Increase of that cost on a host whose CPUs are all busy, per unit of distance; it grows with the fourth power of their utilisation";
    contention_packet_ns = 0.0 in 0.0..=10000.0: "Cost of receiving a packet whose socket another CPU serves, on such a host, per unit of distance";
    network_ns = 26000.0 in 1000.0..=500000.0: "Minimum round-trip delay in the network and the client";
    network_jitter_ns = 10000.0 in 0.0..=200000.0: "Maximum of a uniformly distributed addition to that delay";
    client_tail_share = 0.08 in 0.0..=1.0: "Share of replies that wait for the client's interrupt, and independently for its thread, without load";
    client_tail_slope = 0.2 in 0.0..=2.0: "Increase of that share per million requests per second";
    client_tail_ns = 130000.0 in 0.0..=1000000.0: "Maximum of the uniformly distributed time that such a reply waits";
    client_stall_share = 0.0 in 0.0..=0.2: "Share of replies that wait for a saturated client's scheduler";
    client_outlier_share = 0.004 in 0.0..=0.1: "Share of replies that an unsaturated client processes very late";
    client_outlier_ns = 1000000.0 in 0.0..=100000000.0: "Delay of such a reply";
    client_stall_ns = 10000000.0 in 0.0..=100000000.0: "Time that a reply waits for a saturated client's scheduler";
    ack_delay_ns = 20000.0 in 1000.0..=1000000.0: "Time from a response to the arrival of its acknowledgement";
    bystander_polls_per_s = 0.0 in 0.0..=100000.0: "NAPI polls of other interfaces that a system-wide counter includes, per second and queue; each has one packet";
    unloaded_share = 0.0 in 0.0..=10.0: "Time without load during which polls were also counted, relative to the time with load";
    unloaded_packets_per_s = 0.0 in 0.0..=10000.0: "Packets per second and queue during that time";
    recv_ns = 500.0 in 20.0..=10000.0: "One receive or send call without the costs of serving the request and of polling";
    ring_ns = 60.0 in 5.0..=2000.0: "Checking an AF_XDP ring, and taking a packet if there is one";
    kernel_loop_ns = 60.0 in 5.0..=2000.0: "One iteration of a loop for events inside epoll_wait, without polling a NIC";
    copy_ns_per_kib = 60.0 in 0.0..=5000.0: "Reading or sending one KiB of a message, in addition to the constant cost of a request";
    large_message_ns = 0.0 in 0.0..=20000.0: "Additional cost of serving a message of 2 KiB or more, which needs pages instead of a linear buffer";
    segment_gap_ns = 400.0 in 0.0..=100000.0: "Time between two segments of one message on their way to the socket";
    user_loop_ns = 350.0 in 10.0..=5000.0: "One iteration of a loop that calls epoll_wait with timeout zero";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_is_within_its_range_and_every_constant_is_found_by_name() {
        let constants = Constants::default();
        for constant in CONSTANTS {
            let value = constant.of(&constants);
            assert!((constant.least..=constant.greatest).contains(&value), "{}", constant.name);
            assert!(Constant::named(constant.name).is_some());
        }
    }

    #[test]
    fn only_the_size_of_a_batch_is_counted_in_requests() {
        let counted: Vec<_> = CONSTANTS.iter().filter(|constant| constant.unit() == "requests").collect();
        assert_eq!(counted.iter().map(|constant| constant.name).collect::<Vec<_>>(), ["batch_half"]);
    }

    #[test]
    fn a_value_outside_its_range_is_clamped() {
        let mut constants = Constants::default();
        let share = Constant::named("client_tail_share").expect("the table contains this constant");
        share.set(&mut constants, 7.0);
        assert_eq!(constants.client_tail_share, 1.0);
    }
}
