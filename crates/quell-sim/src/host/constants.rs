//! Physical constants of a host with unit, range and meaning: costs on its CPUs, and delays of network and
//! client. Profile files, the fit and the documentation use this table.

use serde::{Deserialize, Serialize};

/// Definition of a constant.
#[derive(Debug, Clone, Copy)]
pub struct Constant {
    /// Name, which ends with the unit.
    pub name: &'static str,
    /// Smallest valid value.
    pub least: f64,
    /// Largest valid value.
    pub greatest: f64,
    /// Meaning.
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

    /// Unit.
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

    /// Value in `constants`.
    #[must_use]
    pub fn of(&self, constants: &Constants) -> f64 {
        (self.read)(constants)
    }

    /// Sets its value in `constants`, clamped to its range.
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

        /// All constants, in the order of a profile file.
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
    timer_irq_ns = 300.0 in 50.0..=3000.0: "Interrupt of a timer: entry, expiry, programming the next event";
    busy_stop_ns = 800.0 in 20.0..=2000.0: "Leaving a busy poll loop with its backstop: arming or moving the timer, and letting the instance go";
    napi_poll_ns = 400.0 in 50.0..=5000.0: "One NAPI poll apart from its packets: softirq, poll function, completion";
    busy_poll_ns = 600.0 in 50.0..=5000.0: "One round of napi_busy_loop that finds nothing";
    poll_migration_ns = 0.0 in 0.0..=5000.0: "What a poll costs more when another CPU polled the queue last";
    rx_request_ns = 1500.0 in 100.0..=10000.0: "Receiving a packet with data, from the ring to the socket";
    rx_ack_ns = 700.0 in 50.0..=5000.0: "Receiving a pure acknowledgement";
    tx_completion_ns = 100.0 in 0.0..=2000.0: "Cleaning one transmit completion";
    wake_ns = 1500.0 in 100.0..=10000.0: "Waking a thread and switching to it";
    idle_exit_ns = 1200.0 in 100.0..=10000.0: "From the interrupt of an idle CPU to its handler, executed; no idle time and not accounted either";
    idle_entry_ns = 600.0 in 0.0..=10000.0: "Choosing and entering an idle state, executed; not accounted";
    epoll_wait_ns = 800.0 in 50.0..=10000.0: "One epoll_wait apart from its events, with the application's loop around it";
    epoll_event_ns = 250.0 in 20.0..=3000.0: "One descriptor of the ready list that epoll_wait examines";
    request_ns = 3000.0 in 100.0..=50000.0: "Serving one request: read, work, response and its transmission";
    batch_extra_ns = 1200.0 in 0.0..=10000.0: "What a request costs more in a batch that has displaced everything from the caches";
    batch_packet_ns = 400.0 in 0.0..=10000.0: "What receiving a packet costs more on a CPU where such a batch is served";
    batch_half = 120.0 in 1.0..=2000.0: "Requests in a batch for half of these";
    interference_ns = 800.0 in 0.0..=10000.0: "What an application loses each time that packet work interrupts it";
    cross_cpu_ns = 600.0 in 0.0..=10000.0: "What a request costs more when its packet was received on another CPU";
    network_ns = 26000.0 in 1000.0..=500000.0: "Network and client, there and back, at the least";
    network_jitter_ns = 10000.0 in 0.0..=200000.0: "Greatest of what is added to that, uniformly";
    client_tail_share = 0.08 in 0.0..=1.0: "Share of replies that wait for the interrupt of the client, and independently of those that wait for its thread, at no load";
    client_tail_slope = 0.2 in 0.0..=2.0: "Growth of that share per million requests a second";
    client_tail_ns = 130000.0 in 0.0..=1000000.0: "Greatest of what such a reply waits each time, uniformly";
    client_stall_share = 0.0 in 0.0..=0.2: "Share of replies that wait for a saturated client's scheduler";
    client_outlier_share = 0.004 in 0.0..=0.1: "Share of replies that a client that is not saturated sees very late";
    client_outlier_ns = 1000000.0 in 0.0..=100000000.0: "How late such a reply is";
    client_stall_ns = 10000000.0 in 0.0..=100000000.0: "How long such a reply waits";
    ack_delay_ns = 20000.0 in 1000.0..=1000000.0: "From a response to the arrival of its acknowledgement";
    bystander_polls_per_s = 0.0 in 0.0..=100000.0: "NAPI polls of other interfaces that a system-wide counter sees, a second and queue, each with one packet";
    unloaded_share = 0.0 in 0.0..=10.0: "Time without load during which polls were counted as well, relative to the time with load";
    unloaded_packets_per_s = 0.0 in 0.0..=10000.0: "Packets of each queue during that time, a second";
    recv_ns = 500.0 in 20.0..=10000.0: "One receive or send call apart from serving the request and from polling";
    ring_ns = 60.0 in 5.0..=2000.0: "Looking into an AF_XDP ring, and taking a packet if there is one";
    kernel_loop_ns = 60.0 in 5.0..=2000.0: "One round of waiting for events inside epoll_wait, without polling a NIC";
    copy_ns_per_kib = 60.0 in 0.0..=5000.0: "Taking or sending one KiB of a message beyond the constant cost of a request";
    large_message_ns = 0.0 in 0.0..=20000.0: "What serving a message of 2 KiB and more costs on top: pages in place of a linear buffer";
    segment_gap_ns = 400.0 in 0.0..=100000.0: "Between two segments of one message on their way to the socket";
    user_loop_ns = 350.0 in 10.0..=5000.0: "One round of waiting for events by calling epoll_wait with timeout zero";
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
        let share = Constant::named("client_tail_share").expect("it is in the table");
        share.set(&mut constants, 7.0);
        assert_eq!(constants.client_tail_share, 1.0);
    }
}
