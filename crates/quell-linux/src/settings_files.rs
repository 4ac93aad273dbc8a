//! Files from which other programs set queues, interrupts and busy polling: `.link` files of systemd-udevd, the active
//! profile of TuneD, hooks that run when a device appears or its link comes up, and the script of Google's guest agent.
//! Reading finds files; parsing is separate and pure.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Program that applies the settings of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum SettingsOwner {
    /// systemd-udevd applies a `.link` file when a device appears.
    Link,
    /// TuneD applies its active profile when it starts.
    Tuned,
    /// A udev rule, or a script of ifupdown, NetworkManager, networkd-dispatcher, dhclient or SUSE's network service.
    Hook,
    /// Google's guest agent runs a script when it starts.
    GuestAgent,
}

#[derive(Debug)]
pub struct SettingsFile {
    pub owner: SettingsOwner,
    pub path: PathBuf,
    pub content: io::Result<SettingsContent>,
}

/// Relevant contents of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SettingsContent {
    /// Conditions of a `.link` file, as written in `[Match]`: `Driver=ena`.
    pub conditions: Vec<String>,
    /// Settings of queues, interrupts and busy polling: assignments of configuration files (`CombinedChannels=4`), and
    /// commands and file names in scripts (`ethtool -G`, `smp_affinity`).
    pub settings: Vec<String>,
}

/// Longest file that is read; longer ones are cut off.
const BYTES_MAX: u64 = 1 << 20;
/// Nesting limit of included TuneD profiles.
const INCLUDES_MAX: u32 = 16;

const LINK_DIRECTORIES: [&str; 4] =
    ["etc/systemd/network", "run/systemd/network", "usr/local/lib/systemd/network", "usr/lib/systemd/network"];
const TUNED_DIRECTORIES: [&str; 4] = ["etc/tuned/profiles", "etc/tuned", "usr/lib/tuned/profiles", "usr/lib/tuned"];
const RULE_DIRECTORIES: [&str; 4] =
    ["etc/udev/rules.d", "run/udev/rules.d", "usr/local/lib/udev/rules.d", "usr/lib/udev/rules.d"];
const SCRIPT_DIRECTORIES: [&str; 14] = [
    "etc/network/if-pre-up.d",
    "etc/network/if-up.d",
    "etc/NetworkManager/dispatcher.d",
    "etc/NetworkManager/dispatcher.d/pre-up.d",
    "usr/lib/NetworkManager/dispatcher.d",
    "etc/networkd-dispatcher/carrier.d",
    "etc/networkd-dispatcher/configured.d",
    "etc/networkd-dispatcher/routable.d",
    "usr/lib/networkd-dispatcher/carrier.d",
    "usr/lib/networkd-dispatcher/configured.d",
    "usr/lib/networkd-dispatcher/routable.d",
    "etc/dhcp/dhclient-enter-hooks.d",
    "etc/dhcp/dhclient-exit-hooks.d",
    "etc/sysconfig/network/scripts",
];
const GUEST_AGENT_SCRIPT: &str = "usr/bin/google_set_multiqueue";
const GUEST_AGENT_CONFIGURATION: &str = "etc/default/instance_configs.cfg";

/// Files below `root` (`/`) that set queues, interrupts or busy polling. `.link` files are listed even without such
/// settings, in the order in which systemd-udevd examines them, because the first that matches a device applies.
#[must_use]
pub fn read(root: &Path) -> Vec<SettingsFile> {
    let mut files = link_files(root);
    files.extend(tuned_profile(root));
    files.extend(hooks(root));
    files.extend(guest_agent_script(root));
    files
}

fn link_files(root: &Path) -> Vec<SettingsFile> {
    let file = |path: PathBuf| {
        let content = read_text(&path).map(|mut text| {
            let mut drop_ins = path.clone().into_os_string();
            drop_ins.push(".d");
            for drop_in in entries(Path::new(&drop_ins), Some("conf")) {
                text.push('\n');
                text.push_str(&read_text(&drop_in).unwrap_or_default());
            }
            parse_link_file(&text)
        });
        SettingsFile { owner: SettingsOwner::Link, path, content }
    };
    by_name(root, &LINK_DIRECTORIES, "link").map(file).collect()
}

/// Files of these directories in the order of their names. A file replaces files of the same name in later directories.
fn by_name(root: &Path, directories: &[&str], extension: &str) -> impl Iterator<Item = PathBuf> {
    let mut files = BTreeMap::new();
    for directory in directories {
        for path in entries(&root.join(directory), Some(extension)) {
            files.entry(path.file_name().map(ToOwned::to_owned)).or_insert(path);
        }
    }
    files.into_values()
}

fn tuned_profile(root: &Path) -> Option<SettingsFile> {
    let active = read_text(&root.join("etc/tuned/active_profile")).ok()?;
    let mut content = SettingsContent::default();
    let mut first = None;
    let mut open: Vec<(String, u32)> = active.split_whitespace().map(|name| (name.to_owned(), 0)).collect();
    while let Some((name, depth)) = open.pop() {
        let Some(path) = profile_path(root, &name).filter(|_| depth < INCLUDES_MAX) else { continue };
        let (includes, settings) = parse_tuned_profile(&read_text(&path).unwrap_or_default());
        open.extend(includes.into_iter().map(|name| (name, depth + 1)));
        content.settings.extend(settings);
        first.get_or_insert(path);
    }
    content.settings.dedup();
    Some(SettingsFile { owner: SettingsOwner::Tuned, path: first?, content: Ok(content) })
}

fn profile_path(root: &Path, name: &str) -> Option<PathBuf> {
    let is_plain = !name.is_empty() && !name.contains('/') && !name.starts_with('.');
    let paths = TUNED_DIRECTORIES.iter().map(|directory| root.join(directory).join(name).join("tuned.conf"));
    paths.filter(|_| is_plain).find(|path| path.is_file())
}

fn hooks(root: &Path) -> impl Iterator<Item = SettingsFile> {
    let scripts = SCRIPT_DIRECTORIES.iter().flat_map(|directory| entries(&root.join(directory), None));
    let files: Vec<PathBuf> = by_name(root, &RULE_DIRECTORIES, "rules").chain(scripts).collect();
    files.into_iter().filter_map(|path| script(SettingsOwner::Hook, path))
}

/// A script, unless it is known to have no settings.
fn script(owner: SettingsOwner, path: PathBuf) -> Option<SettingsFile> {
    let content = read_text(&path).map(|text| SettingsContent { settings: parse_script(&text), ..Default::default() });
    let is_relevant = content.as_ref().map_or(true, |content| !content.settings.is_empty());
    is_relevant.then_some(SettingsFile { owner, path, content })
}

fn guest_agent_script(root: &Path) -> Option<SettingsFile> {
    let configuration = read_text(&root.join(GUEST_AGENT_CONFIGURATION)).unwrap_or_default();
    let is_off = |(section, key, value): &(String, String, String)| {
        section == "InstanceSetup" && key == "set_multiqueue" && value.eq_ignore_ascii_case("false")
    };
    let path = root.join(GUEST_AGENT_SCRIPT);
    let runs = path.is_file() && !assignments(&configuration).iter().any(is_off);
    if runs { script(SettingsOwner::GuestAgent, path) } else { None }
}

/// Regular files of a directory with this extension, in the order of their names. A directory that does not exist or
/// cannot be read has none.
fn entries(directory: &Path, extension: Option<&str>) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_wanted = |path: &PathBuf| extension.is_none_or(|wanted| path.extension().is_some_and(|its| its == wanted));
    let mut paths: Vec<PathBuf> = paths.filter(is_wanted).filter(|path| !path.is_dir()).collect();
    paths.sort();
    paths
}

/// Text of a regular file. A link to `/dev/null`, which masks a file, is empty.
fn read_text(path: &Path) -> io::Result<String> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Ok(String::new());
    }
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn assignments(text: &str) -> Vec<(String, String, String)> {
    let mut section = String::new();
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.trim().to_owned();
        } else if let Some((key, value)) = line.split_once('=').filter(|_| !line.starts_with(['#', ';'])) {
            found.push((section.clone(), key.trim().to_owned(), value.trim().to_owned()));
        }
    }
    found
}

/// Parses a `.link` file (`systemd.link(5)`).
#[must_use]
pub fn parse_link_file(text: &str) -> SettingsContent {
    const PARTS: [&str; 8] = [
        "Channels",
        "BufferSize",
        "Coalesce",
        "GenericReceiveOffload",
        "LargeReceiveOffload",
        "NTupleFilter",
        "ReceivePacketSteering",
        "IRQAffinity",
    ];
    let mut content = SettingsContent::default();
    for (section, key, value) in assignments(text) {
        match &*section {
            "Match" => content.conditions.push(format!("{key}={value}")),
            "Link" if PARTS.iter().any(|part| key.contains(part)) => content.settings.push(format!("{key}={value}")),
            _ => {}
        }
    }
    content
}

/// Parses a TuneD profile (`tuned.conf(5)`): names of included profiles, and relevant settings.
#[must_use]
pub fn parse_tuned_profile(text: &str) -> (Vec<String>, Vec<String>) {
    let assignments = assignments(text);
    let kind = |section: &str| {
        let is_type = |(of, key, _): &&(String, String, String)| of == section && key == "type";
        assignments.iter().find(is_type).map_or_else(|| section.to_owned(), |(_, _, value)| value.clone())
    };
    let (mut includes, mut settings) = (Vec::new(), Vec::new());
    for (section, key, value) in &assignments {
        let is_relevant = match &*kind(section) {
            "main" if key == "include" => {
                includes.extend(value.split(',').map(|name| name.trim().to_owned()));
                false
            }
            "sysctl" => key.starts_with("net.core.busy_") || key.starts_with("net.core.netdev_budget"),
            "sysfs" => FILE_NAMES.iter().any(|name| key.contains(name)),
            "net" => ["coalesce", "ring", "channels", "features"].contains(&&**key),
            "irq" => key == "affinity" || key == "mode",
            "scheduler" => key == "default_irq_smp_affinity" || key == "isolated_cores",
            _ => false,
        };
        if is_relevant {
            settings.push(format!("{key}={value}"));
        }
    }
    (includes, settings)
}

const FILE_NAMES: [&str; 8] = [
    "napi_defer_hard_irqs",
    "gro_flush_timeout",
    "smp_affinity",
    "rps_cpus",
    "xps_cpus",
    "xps_rxqs",
    "net.core.busy_poll",
    "net.core.busy_read",
];
const ETHTOOL_OPTIONS: [&str; 16] = [
    "-C",
    "--coalesce",
    "-Q",
    "--per-queue",
    "-G",
    "--set-ring",
    "-L",
    "--set-channels",
    "-K",
    "--features",
    "--offload",
    "-X",
    "--set-rxfh-indir",
    "-N",
    "-U",
    "--config-ntuple",
];

/// Finds settings in a script or a udev rule: names of files, and commands of ethtool. Comments are ignored. A script
/// that calls ethtool through a variable is not recognised: Debian's hook does so, and sets only what the user has
/// configured for the device.
#[must_use]
pub fn parse_script(text: &str) -> Vec<String> {
    let mut settings: Vec<String> = Vec::new();
    for line in text.lines().map(str::trim_start).filter(|line| !line.starts_with('#')) {
        let named = FILE_NAMES.iter().filter(|name| line.contains(**name)).map(|name| (*name).to_owned());
        let words: Vec<&str> = line.split(|letter: char| letter.is_whitespace() || "\"',;".contains(letter)).collect();
        let calls = words.windows(2).filter_map(|pair| match pair {
            [command, option] if is_ethtool(command) && ETHTOOL_OPTIONS.contains(option) => {
                Some(format!("ethtool {option}"))
            }
            _ => None,
        });
        for setting in named.chain(calls) {
            if !settings.contains(&setting) {
                settings.push(setting);
            }
        }
    }
    settings
}

fn is_ethtool(word: &str) -> bool {
    word.rsplit(['/', '=', '(', '`']).next() == Some("ethtool")
}

/// Interrupts that irqbalance leaves alone, by the arguments of its process (`irqbalance(1)`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct IrqBans {
    /// Numbers of excluded interrupts (`--banirq`).
    pub irqs: Vec<u32>,
    /// Names of drivers whose interrupts are excluded (`--banmod`).
    pub modules: Vec<String>,
    /// Whether a script decides for each interrupt (`--policyscript`).
    pub has_policy_script: bool,
}

impl IrqBans {
    #[must_use]
    pub fn parse<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Self {
        let mut bans = Self::default();
        let mut arguments = arguments.into_iter();
        while let Some(argument) = arguments.next() {
            let (option, value) = match argument.split_once('=') {
                Some((option, value)) => (option, Some(value)),
                // A short option with its value: -i24.
                None if !argument.starts_with("--") && argument.is_char_boundary(2) && argument.len() > 2 => {
                    (&argument[..2], Some(&argument[2..]))
                }
                None => (argument, None),
            };
            match option {
                "-i" | "--banirq" => {
                    bans.irqs.extend(value.or_else(|| arguments.next()).and_then(|irq| irq.parse::<u32>().ok()));
                }
                "-m" | "--banmod" => bans.modules.extend(value.or_else(|| arguments.next()).map(str::to_owned)),
                "-l" | "--policyscript" => bans.has_policy_script = true,
                _ => {}
            }
        }
        bans
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn settings(root: &tempfile::TempDir, owner: SettingsOwner) -> Vec<(String, Vec<String>)> {
        let files = read(root.path()).into_iter().filter(|file| file.owner == owner);
        let name = |file: &SettingsFile| file.path.strip_prefix(root.path()).unwrap().to_str().unwrap().to_owned();
        files.map(|file| (name(&file), file.content.unwrap().settings)).collect()
    }

    #[test]
    fn a_link_file_of_the_administrator_replaces_that_of_the_distribution() {
        let root = root(&[
            ("usr/lib/systemd/network/99-default.link", "[Match]\nOriginalName=*\n[Link]\nNamePolicy=keep\n"),
            ("usr/lib/systemd/network/50-nic.link", "[Link]\nRxBufferSize=max\n"),
            ("etc/systemd/network/50-nic.link", "[Match]\nDriver=ice\n\n[Link]\n# RxChannels=1\nCombinedChannels=4\n"),
            ("etc/systemd/network/50-nic.link.d/more.conf", "[Link]\nUseAdaptiveRxCoalesce=yes\n"),
        ]);
        let nic = vec!["CombinedChannels=4".to_owned(), "UseAdaptiveRxCoalesce=yes".to_owned()];
        let expected = [
            ("etc/systemd/network/50-nic.link".to_owned(), nic),
            ("usr/lib/systemd/network/99-default.link".to_owned(), Vec::new()),
        ];
        assert_eq!(settings(&root, SettingsOwner::Link), expected);
    }

    #[test]
    fn a_tuned_profile_has_the_settings_of_the_profiles_that_it_includes() {
        let root = root(&[
            ("etc/tuned/active_profile", "mine\n"),
            ("etc/tuned/mine/tuned.conf", "[main]\ninclude=network-latency\n[nic]\ntype=net\nring=rx 1024\n"),
            (
                "usr/lib/tuned/network-latency/tuned.conf",
                "[main]\ninclude=mine\n[sysctl]\nnet.core.busy_read=50\nkernel.numa_balancing=0\n",
            ),
        ]);
        let found = settings(&root, SettingsOwner::Tuned);
        assert_eq!(found[0].0, "etc/tuned/mine/tuned.conf");
        assert!(
            found[0].1.contains(&"ring=rx 1024".to_owned()) && found[0].1.contains(&"net.core.busy_read=50".to_owned())
        );
        assert!(!found[0].1.iter().any(|setting| setting.contains("numa")), "{found:?}");
    }

    #[test]
    fn scripts_are_listed_with_the_settings_that_they_write() {
        let debian = "#!/bin/sh\nETHTOOL=/sbin/ethtool\n$ETHTOOL --coalesce $IFACE $SETTINGS\n";
        let rule = "ACTION==\"add\", SUBSYSTEM==\"net\", RUN+=\"/usr/sbin/ethtool -G $name rx 4096\"\n";
        let own = "# echo 1 > /proc/irq/9/smp_affinity\necho 0 > /sys/class/net/$1/gro_flush_timeout\n";
        let root = root(&[
            ("etc/network/if-up.d/ethtool", debian),
            ("etc/udev/rules.d/99-ring.rules", rule),
            ("etc/NetworkManager/dispatcher.d/20-nic", own),
        ]);
        let expected = [
            ("etc/udev/rules.d/99-ring.rules".to_owned(), vec!["ethtool -G".to_owned()]),
            ("etc/NetworkManager/dispatcher.d/20-nic".to_owned(), vec!["gro_flush_timeout".to_owned()]),
        ];
        assert_eq!(settings(&root, SettingsOwner::Hook), expected);
    }

    #[test]
    fn the_script_of_the_guest_agent_can_be_turned_off() {
        let script = ("usr/bin/google_set_multiqueue", "echo $MASK > /proc/irq/$irq/smp_affinity_list\n");
        let found = settings(&root(&[script]), SettingsOwner::GuestAgent);
        assert_eq!(found[0].1, ["smp_affinity"]);
        let off = ("etc/default/instance_configs.cfg", "[InstanceSetup]\nset_multiqueue = false\n");
        assert_eq!(settings(&root(&[script, off]), SettingsOwner::GuestAgent), []);
    }

    #[test]
    fn irqbalance_names_the_interrupts_that_it_leaves_alone() {
        let bans = IrqBans::parse(["irqbalance", "--foreground", "--banirq=24", "-i", "25", "-i26", "--banmod=ice"]);
        assert_eq!((bans.irqs, bans.modules), (vec![24, 25, 26], vec!["ice".to_owned()]));
        assert!(IrqBans::parse(["irqbalance", "--policyscript=/etc/policy"]).has_policy_script);
        assert_eq!(IrqBans::parse(["irqbalance", "--banirq"]), IrqBans::default());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[\\x00-\\x7fä]{0,200}", words: Vec<String>) {
            let _ = (parse_link_file(&text), parse_tuned_profile(&text), parse_script(&text));
            let _ = IrqBans::parse(words.iter().map(String::as_str));
        }
    }
}
