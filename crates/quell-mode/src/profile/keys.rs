//! All keys of a profile. The parser accepts exactly these keys, and `docs/profile-keys.md` is generated from them. The
//! reference is therefore complete.

use std::fmt::Write as _;

/// A table of a profile, and the keys that it accepts.
#[derive(Debug)]
pub struct ProfileTable {
    /// Path of the table. Components in capitals are labels that the author of a profile chooses.
    pub path: &'static str,
    /// Purpose of the table, in one sentence.
    pub purpose: &'static str,
    /// Keys that the table accepts.
    pub keys: &'static [ProfileKey],
}

/// A key of a profile.
#[derive(Debug)]
pub struct ProfileKey {
    /// Name of the key.
    pub name: &'static str,
    /// Valid values and their unit.
    pub values: &'static str,
    /// Effect of the key. If its absence does not mean "unchanged", the text gives the default.
    pub meaning: &'static str,
    /// Example of a value, in TOML.
    pub example: &'static str,
}

const fn key(name: &'static str, values: &'static str, meaning: &'static str, example: &'static str) -> ProfileKey {
    ProfileKey { name, values, meaning, example }
}

impl ProfileTable {
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.keys.iter().map(|key| key.name)
    }
}

pub(super) const ROOT: ProfileTable = ProfileTable {
    path: "",
    purpose: "Purpose of the profile, and the objects that it configures.",
    keys: &[
        key("description", "text", "Purpose of the profile, in a sentence.", "'memcached on one NIC'"),
        key("device", "tables", "Devices, each with a label.", "{ nic = { name = 'eth0' } }"),
        key("program", "table", "Settings of the program of `quell run` and `quell attach`.", "{ mode = 'suspend20' }"),
        key("sysctl", "table", "Network sysctls.", "{ \"net.core.busy_poll\" = 0 }"),
    ],
};

pub(super) const DEVICE: ProfileTable = ProfileTable {
    path: "device.LABEL",
    purpose: "Devices selected by name, by driver, or by both. One of the two is required.",
    keys: &[
        key("name", "text with `*`, `?`, `[...]`", "Selects devices by name.", "'ens*'"),
        key("driver", "text with `*`, `?`, `[...]`", "Selects devices by driver.", "'ice'"),
        key("channels", "table", "Channel counts (`ethtool -L`).", "{ combined = 4 }"),
        key("rings", "table", "Ring sizes (`ethtool -G`).", "{ rx = 1024 }"),
        key(
            "features",
            "the kernel's feature names with true or false",
            "Offload features (`ethtool -K`).",
            "{ rx-gro = true }",
        ),
        key("coalescing", "table", "Interrupt coalescing of all queues (`ethtool -C`).", "{ rx-usecs = 8 }"),
        key(
            "rss",
            "tables",
            "RSS contexts, each with a label; `main` is the default context.",
            "{ main = { queues = '0-3' } }",
        ),
        key("only-these-rss-contexts", "true or false", "Deletes all other RSS contexts.", "true"),
        key(
            "flow",
            "tables",
            "Flow rules (`ethtool -N`), each with a label.",
            "{ web = { protocol = 'tcp', port = 80, to-queue = 0 } }",
        ),
        key("only-these-flow-rules", "true or false", "Deletes all other flow rules.", "true"),
        key("queues", "tables", "Groups of queues, each with a label.", "{ all = { mode = 'suspend20' } }"),
    ],
};

pub(super) const CHANNELS: ProfileTable = ProfileTable {
    path: "device.LABEL.channels",
    purpose: "Channel counts of the device.",
    keys: &[
        key("combined", "1 and above", "Channels with a receive and a transmit queue.", "4"),
        key("rx", "1 and above", "Channels with a receive queue only.", "4"),
        key("tx", "1 and above", "Channels with a transmit queue only.", "4"),
    ],
};

pub(super) const RINGS: ProfileTable = ProfileTable {
    path: "device.LABEL.rings",
    purpose: "Ring sizes of the device.",
    keys: &[
        key("rx", "descriptors, 1 and above", "Ring size of each receive queue.", "1024"),
        key("tx", "descriptors, 1 and above", "Ring size of each transmit queue.", "1024"),
    ],
};

pub(super) const COALESCING: ProfileTable = ProfileTable {
    path: "device.LABEL.coalescing, device.LABEL.queues.LABEL.coalescing",
    purpose: "Interrupt coalescing, of the device or of a group of queues. CQE modes exist for the device only.",
    keys: &[
        key("adaptive-rx", "true or false", "The driver adapts the receive delay to the load.", "false"),
        key("adaptive-tx", "true or false", "The driver adapts the transmit delay to the load.", "false"),
        key("rx-usecs", "µs, 0 to 4294967295", "Delay of a receive interrupt.", "8"),
        key("rx-frames", "packets, 0 to 4294967295", "Packets after which a receive interrupt is immediate.", "32"),
        key("tx-usecs", "µs, 0 to 4294967295", "Delay of a transmit-completion interrupt.", "8"),
        key(
            "tx-frames",
            "packets, 0 to 4294967295",
            "Packets after which a transmit-completion interrupt is immediate.",
            "32",
        ),
        key("cqe-mode-rx", "true or false", "Each completion restarts the receive delay.", "false"),
        key("cqe-mode-tx", "true or false", "Each completion restarts the transmit delay.", "false"),
    ],
};

pub(super) const RSS: ProfileTable = ProfileTable {
    path: "device.LABEL.rss.LABEL",
    purpose: "An RSS context.",
    keys: &[key(
        "queues",
        "\"all\", or queue numbers",
        "Queues of the context, with equal weights. Required.",
        "'0-3'",
    )],
};

pub(super) const FLOW: ProfileTable = ProfileTable {
    path: "device.LABEL.flow.LABEL",
    purpose: "A flow rule. It requires `protocol`, a `port` or an `address`, and one of `to-queue` and `to-rss`.",
    keys: &[
        key("protocol", "\"tcp\" or \"udp\"", "Transport protocol.", "'tcp'"),
        key("port", "1 to 65535", "Destination port. Default: any.", "11211"),
        key("address", "an IPv4 or IPv6 address", "Destination address. Default: any.", "'192.0.2.1'"),
        key("family", "\"ipv4\" or \"ipv6\"", "Address family. Default: that of `address`, otherwise both.", "'ipv4'"),
        key("to-queue", "a queue number", "Receive queue of the packets.", "0"),
        key("to-rss", "a label of `rss`", "RSS context of the packets, other than `main`.", "'bulk'"),
    ],
};

pub(super) const QUEUES: ProfileTable = ProfileTable {
    path: "device.LABEL.queues.LABEL",
    purpose: "A group of queues. A receive and a transmit queue with the same number belong together.",
    keys: &[
        key("queues", "\"all\", or queue numbers", "Queues of the group. Default: all.", "[0, 1]"),
        key(
            "mode",
            "a delivery mode",
            "Delivery mode whose NAPI settings apply. [modes.md](modes.md) lists the modes. A mode without NAPI threads removes \
             them, and with them their CPUs; `quell attach`, `bench` and `tune` keep them. `defer200,threaded=1` does too.",
            "'suspend20,defer-hard-irqs=10'",
        ),
        key("coalescing", "table", "Interrupt coalescing of these queues.", "{ rx-usecs = 8 }"),
        key("irq-cpus", super::CpuPolicy::EXPECTED, "IRQ affinity, one CPU per queue in turn.", "'numa-local'"),
        key(
            "xps",
            super::XpsPolicy::EXPECTED,
            "Transmit queue of a sender (XPS). \"irq-cpu\" clears `xps_rxqs`, which takes precedence over `xps_cpus`.",
            "'irq-cpu'",
        ),
        key("rps", "false", "Turns RPS off.", "false"),
        key("thread-cpus", super::CpuPolicy::EXPECTED, "CPUs of the NAPI threads, one per queue in turn.", "'2-5'"),
        key("thread-scheduling", super::ThreadScheduling::EXPECTED, "Scheduling of the NAPI threads.", "'fifo:50'"),
    ],
};

pub(super) const PROGRAM: ProfileTable = ProfileTable {
    path: "program",
    purpose: "The program of `quell run --profile` and `quell attach --profile`. `quell apply` sets only the other tables.",
    keys: &[
        key(
            "mode",
            "a delivery mode",
            "Delivery mode of the program. [modes.md](modes.md) lists the modes.",
            "'suspend20'",
        ),
        key(
            "max-events",
            "events, 1 to 178956970",
            "Maximum number of events that one `epoll_wait` returns. While the program processes them, its queue is not polled.",
            "64",
        ),
        key(
            "found-elsewhere",
            "text",
            "Where `quell tune` found the mode, if it did not measure the program. `quell attach` and `quell run` print it.",
            "'simulated on the model of epyc7662-cx5'",
        ),
    ],
};

/// All tables, from the top of the file inwards. `sysctl` and `features` are not listed, because their keys are names
/// of the kernel.
pub const TABLES: &[ProfileTable] = &[ROOT, DEVICE, CHANNELS, RINGS, COALESCING, RSS, FLOW, QUEUES, PROGRAM];

/// Reference of all keys, in Markdown.
#[must_use]
pub fn markdown() -> String {
    let mut text = HEAD.to_owned();
    for table in TABLES {
        let names: Vec<_> = table.path.split(", ").map(|path| format!("`[{path}]`")).collect();
        let title = if table.path.is_empty() { "Top of the file".to_owned() } else { names.join(", ") };
        // Writing to a string cannot fail.
        let _ = write!(text, "\n## {title}\n\n{}\n\n", table.purpose);
        for key in table.keys {
            let _ = writeln!(text, "- `{} = {}` ({}). {}", key.name, key.example, key.values, key.meaning);
        }
    }
    text + TAIL
}

const HEAD: &str = "# Keys of a profile

Made from the tables in `crates/quell-mode/src/profile/keys.rs`; [apply.md](apply.md) shows how a profile is applied. A
setting without a key stays unchanged on the host, unless a default is given. An unknown key is refused, with the nearest
key of its table, or all of them. Queue and CPU numbers are a number, an array, or a text such as `\"0-3,8\"`.
";

const TAIL: &str = "
## `[sysctl]`

Names of network sysctls (`net.*`), with values as `sysctl(8)` prints them: `\"net.core.busy_poll\" = 0`.
";
