//! Profiles: shipped profiles parse, layers are merged key by key, and errors have their position.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use quell_mode::profile::{
    CoalesceKey, Contradiction, CpuPolicy, FlowFamily, FlowTarget, Profile, ProfileError, ProfileRefusal, QueueSet,
    Source, ThreadScheduling, XpsPolicy,
};

fn parse(text: &str) -> Result<Profile, ProfileError> {
    Profile::parse(&[Source::new("test.toml", text)])
}

fn refusal(text: &str) -> (String, ProfileRefusal) {
    let error = parse(text).unwrap_err();
    (error.place().to_string(), error.refusal().clone())
}

fn contradiction(device: &str) -> Contradiction {
    match refusal(&format!("[device.nic]\nname = 'eth0'\n{device}")).1 {
        ProfileRefusal::Contradiction(contradiction) => contradiction,
        other => panic!("{other}"),
    }
}

#[test]
fn every_shipped_profile_parses_and_has_a_description() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles");
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let profile = Profile::parse(&[Source::new(&name, fs::read_to_string(&path).unwrap())]);
        let profile = profile.unwrap_or_else(|error| panic!("{error}\n{}", error.caret()));
        assert!(profile.description.is_some() && !profile.devices.is_empty(), "{name}");
        names.push(name);
    }
    names.sort_unstable();
    let expected = ["af-xdp", "defaults", "haproxy", "lab", "memcached", "nginx", "redis"];
    let expected = expected.map(|name| format!("{name}.toml"));
    assert_eq!(names, expected);
}

#[test]
fn a_profile_can_have_settings_of_a_program() {
    for name in ["memcached", "redis", "nginx", "haproxy"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles").join(name).with_extension("toml");
        let profile = Profile::parse(&[Source::new(name, fs::read_to_string(path).unwrap())]).unwrap();
        let mode = profile.program.unwrap_or_else(|| panic!("{name}")).mode;
        let queues = profile.devices[0].queues[0].mode.as_ref();
        assert_eq!(mode.map(|mode| mode.value), queues.map(|mode| mode.value), "{name}: the queues have another mode");
    }
}

#[test]
fn the_unit_and_the_profiles_that_suspend_have_the_recommended_mode() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    for name in ["memcached", "redis", "nginx"] {
        let profile = Profile::parse(&[Source::new(name, read(&format!("profiles/{name}.toml")))]).unwrap();
        assert_eq!(profile.program.unwrap().mode.unwrap().value.to_string(), "suspend200", "{name}");
    }
    assert!(read("dist/quell-attach@.service").contains("\nEnvironment=QUELL_MODE=suspend200 QUELL_OPTIONS=\n"));
    assert!(read("docs/modes.md").contains("Start with `suspend200`"));
}

#[test]
fn an_error_in_the_settings_of_a_program_has_its_position() {
    let error = parse("[program]\nmode = 'suspend'\n").unwrap_err();
    assert_eq!(error.caret(), "mode = 'suspend'\n               ^");
    let (place, refusal) = refusal("[program]\nmax-events = 0\n");
    assert_eq!(
        (place.as_str(), refusal.to_string().as_str()),
        ("test.toml:2:14", "`max-events` must be a number of events from 1 to 178956970")
    );
    let (place, refusal) = self::refusal("[program]\nmax-event = 8\n");
    assert_eq!(
        (place.as_str(), refusal.to_string().as_str()),
        ("test.toml:2:1", "unknown key `max-event`; did you mean `max-events`?")
    );
}

#[test]
fn a_mode_for_sockets_is_accepted_for_a_program() {
    let program = parse("[program]\nmode = 'sockpoll50'\n").unwrap().program.unwrap();
    assert_eq!(program.mode.unwrap().value.to_string(), "sockpoll50");
    assert_eq!(program.max_events, None);
}

#[test]
fn all_settings_of_a_device_are_read() {
    let profile = parse(
        r#"
        [device.nic]
        name = "ens*"
        driver = "ice"
        channels = { combined = 4 }
        rings.rx = 1024
        only-these-flow-rules = true
        features = { rx-gro = true }
        coalescing = { adaptive-rx = false, rx-usecs = 8 }
        rss.cache.queues = [3, 2]
        flow.cache = { protocol = "tcp", port = 11211, to-rss = "cache" }
        flow.dns = { protocol = "udp", port = 53, address = "10.0.0.1", to-queue = 1 }
        [device.nic.queues.workers]
        queues = "2-3"
        mode = "threaded"
        irq-cpus = "4,6"
        xps = "irq-cpu"
        rps = false
        thread-cpus = "numa-local"
        thread-scheduling = "fifo:50"
        coalescing.rx-usecs = 0
        "#,
    )
    .unwrap();
    let [nic] = profile.devices.as_slice() else { panic!("{:?}", profile.devices) };
    assert!(nic.name.as_ref().unwrap().value.matches("ens5"));
    assert_eq!(nic.channels.combined.as_ref().unwrap().value, 4);
    assert_eq!(nic.coalescing[&CoalesceKey::AdaptiveRx].value, 0);
    assert_eq!(nic.rss[0].queues.value, QueueSet::These(vec![2, 3]));
    assert_eq!(nic.flows[0].families, [FlowFamily::V4, FlowFamily::V6]);
    assert_eq!(nic.flows[1].families, [FlowFamily::V4], "the family of the address");
    assert_eq!(nic.flows[1].target.value, FlowTarget::Queue(1));
    let group = &nic.queues[0];
    assert_eq!(group.irq_cpus.as_ref().unwrap().value, CpuPolicy::These(vec![4, 6]));
    assert_eq!(group.xps.as_ref().unwrap().value, XpsPolicy::IrqCpu);
    assert_eq!(group.thread_scheduling.as_ref().unwrap().value, ThreadScheduling::Fifo { priority: 50 });
    assert!(group.rps_off.is_some());
}

#[test]
fn a_later_layer_replaces_keys_of_an_earlier_one() {
    let vendor = Source::new(
        "vendor.toml",
        "[device.nic]\nname = 'a'\nrings = { rx = 1, tx = 2 }\n[sysctl]\nnet.core.busy_poll = 5",
    );
    let local = Source::new("local.toml", "[device.nic.rings]\ntx = 3\n[device.other]\nname = 'b'");
    let profile = Profile::parse(&[vendor, local]).unwrap();
    let rings = &profile.devices[0].rings;
    let (rx, tx) = (rings.rx.as_ref().unwrap(), rings.tx.as_ref().unwrap());
    assert_eq!((rx.value, rx.place.to_string().as_str()), (1, "vendor.toml:3:16"));
    assert_eq!((tx.value, tx.place.to_string().as_str()), (3, "local.toml:2:6"));
    assert_eq!(profile.devices.len(), 2);
    assert_eq!(profile.sysctls["net.core.busy_poll"].value, "5");
}

#[test]
fn an_unknown_key_is_refused_with_its_position_and_the_most_similar_one() {
    let error = parse("[device.nic]\nname = 'eth0'\ncoalescing = { rx-usec = 3 }").unwrap_err();
    assert_eq!(error.to_string(), "test.toml:3:16: unknown key `rx-usec`; did you mean `rx-usecs`?");
    assert_eq!(error.caret(), "coalescing = { rx-usec = 3 }\n               ^^^^^^^");
}

#[test]
fn invalid_toml_is_refused_with_its_position() {
    let (place, refusal) = refusal("[device.nic\nname = 1");
    assert!(matches!(refusal, ProfileRefusal::Syntax(_)), "{refusal}");
    assert!(place.starts_with("test.toml:1:"), "{place}");
}

#[test]
fn an_invalid_mode_is_refused_with_the_position_in_its_text() {
    let error = parse("[device.nic]\nname = 'eth0'\nqueues.all.mode = \"base,irq-suspend-timeout=5ms\"").unwrap_err();
    assert!(matches!(error.refusal(), ProfileRefusal::Mode(_)), "{error}");
    let error = parse("[device.nic]\nname = 'eth0'\nqueues.all.mode = 'suspnd20'").unwrap_err();
    assert_eq!(error.caret(), "queues.all.mode = 'suspnd20'\n                   ^^^^^^");
}

#[test]
fn values_of_a_wrong_type_or_out_of_range_are_refused() {
    for (line, place) in [
        ("name = 3", "test.toml:2:8"),
        ("name = 'eth0'\nchannels = 4", "test.toml:3:12"),
        ("name = 'eth0'\nchannels.rx = 0", "test.toml:3:15"),
        ("name = 'eth0'\nrings.rx = 4294967296", "test.toml:3:12"),
        ("name = 'eth0'\nqueues.a.queues = '3-1'", "test.toml:3:19"),
        ("name = 'eth0'\nqueues.a.queues = []", "test.toml:3:19"),
        ("name = 'eth0'\nqueues.a.irq-cpus = 'somewhere'", "test.toml:3:21"),
        ("name = 'eth0'\nqueues.a.rps = true", "test.toml:3:16"),
        ("name = 'eth0'\nqueues.a.thread-scheduling = 'fifo:100'", "test.toml:3:30"),
        ("name = 'eth0'\nqueues.a.coalescing.cqe-mode-rx = true", "test.toml:3:35"),
        ("name = 'eth0'\nflow.a = { protocol = 'tcp', port = 65536, to-queue = 1 }", "test.toml:3:37"),
        ("name = 'eth0'\nflow.a = { protocol = 'tcp', to-queue = 1 }", "test.toml:3:6"),
        ("name = 'eth0'\nflow.a = { protocol = 'tcp', port = 1 }", "test.toml:3:6"),
        ("name = 'eth0'\nrss.a = {}", "test.toml:3:5"),
        ("rings.rx = 1", "test.toml:1:9"),
    ] {
        let error = parse(&format!("[device.nic]\n{line}")).unwrap_err();
        assert_eq!(error.place().to_string(), place, "{line}: {error}");
    }
    for name in ["busy_poll", "net.core.", "net.co re.x", "kernel.core_pattern", "vm.swappiness", "network.x"] {
        assert!(parse(&format!("[sysctl]\n\"{name}\" = 1")).is_err(), "{name}");
    }
    assert!(parse(r#"sysctl."net.ipv4.tcp_rmem" = "4096\t1\t2""#).is_ok());
    assert!(parse(r#"sysctl."net.ipv4.tcp_rmem" = "4096 \u001b[31m""#).is_err());
}

#[test]
fn contradictions_are_refused() {
    let twice =
        contradiction("queues.a = { queues = '0-3', mode = 'base' }\nqueues.b = { queues = 3, mode = 'defer20' }");
    assert_eq!(twice, Contradiction::QueueTwice { queue: 3, other: "a".into(), key: "mode" });
    assert_eq!(
        contradiction("coalescing = { adaptive-rx = true, rx-usecs = 3 }"),
        Contradiction::AdaptiveAndGiven { adaptive: "adaptive-rx", given: "rx-usecs" }
    );
    assert_eq!(contradiction("queues.a = { mode = 'base', thread-cpus = '1' }"), Contradiction::NoThread);
    let program = contradiction("queues.a.mode = 'sockpoll50'");
    assert_eq!(program, Contradiction::ModeOfPrograms { mode: "sockpoll50".into() });
    let flow = |target: &str| contradiction(&format!("flow.a = {{ protocol = 'tcp', port = 1, {target} }}"));
    assert_eq!(flow("to-rss = 'none'"), Contradiction::NoSuchContext { label: "none".into() });
    assert_eq!(flow("to-rss = 'main'"), Contradiction::RuleToMain);
    assert_eq!(flow("to-queue = 1 }\nfeatures = { rx-ntuple-filter = false"), Contradiction::FlowRulesOff);
    assert_eq!(
        flow("to-queue = 4 }\nchannels = { combined = 4"),
        Contradiction::QueueBeyondChannels { queue: 4, channels: 4 }
    );
    assert_eq!(
        contradiction("features = { rx-gro = false }\nqueues.a.mode = 'suspend20'"),
        Contradiction::DeferralWithoutGro
    );
    let rule = "{ protocol = 'tcp', port = 1, to-queue = 0 }";
    assert_eq!(
        contradiction(&format!("flow.a = {rule}\nflow.b = {rule}")),
        Contradiction::RuleTwice { other: "a".into() }
    );
}

#[test]
fn a_group_of_some_queues_overrides_the_group_of_all() {
    parse("[device.nic]\nname = 'a'\nqueues.all.mode = 'base'\nqueues.b = { queues = 1, mode = 'defer20' }").unwrap();
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_with_a_position(text in "[ -~\n\tµ]{0,80}") {
        if let Err(error) = parse(&text) {
            prop_assert!(error.caret().lines().count() <= 2);
        }
    }

    #[test]
    fn any_small_change_of_a_profile_is_read_or_refused_with_a_position(at in 0_usize..1_000, byte in 0x20_u8..0x7f) {
        let mut text = include_str!("../../../../profiles/memcached.toml").as_bytes().to_vec();
        let at = text.len() * at / 1_000;
        text[at] = byte;
        if let Ok(text) = String::from_utf8(text) && let Err(error) = parse(&text) {
            prop_assert!(error.place().line() >= 1);
        }
    }
}

#[test]
fn a_key_or_value_with_a_line_break_does_not_break_the_line_of_the_error() {
    for text in [
        "\"a\\nb\" = 1",
        "[device.\"a\\u001b[2J\"]\nname = 'x'",
        "[device.a]\nname = \"e\\n[\"",
        "[sysctl]\n\"a\\nb\" = 1",
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(!error.contains(char::is_control), "{error:?}");
    }
}

#[test]
fn a_profile_with_too_many_tables_is_refused_quickly() {
    let sections = |count: usize, line: &dyn Fn(usize) -> String| {
        let lines: String = (0..count).map(line).collect();
        parse(&format!("[device.a]\nname = 'a'\n{lines}"))
    };
    let groups = sections(20_000, &|n| format!("[device.a.queues.g{n}]\nqueues = '{n}'\n")).unwrap_err();
    assert!(groups.to_string().ends_with(":18: `queues` has more than 1000 tables"), "{groups}");
    let flow = |n: usize| format!("[device.a.flow.f{n}]\nprotocol = 'tcp'\nport = 1\nto-queue = 1\n");
    assert!(sections(20_000, &flow).unwrap_err().to_string().ends_with("`flow` has more than 1000 tables"));
    assert!(parse(&(0..20_000).map(|n| format!("[device.d{n}]\nname = 'a'\n")).collect::<String>()).is_err());
    // Groups of maximum size that have no setting in common.
    let group = |n: usize| format!("[device.a.queues.g{n}]\nqueues = '0-65535'\n");
    assert!(sections(100, &group).is_ok());
    assert!(parse(&format!("[device.a.queues.g]\nqueues = '{}'", "0-65535,".repeat(100_000))).is_err());
    assert!(parse(&"a.".repeat(500_000)).is_err());
    assert!(parse(&format!("{}1 = 1", "a.".repeat(200_000))).is_err());
    assert!(parse(&format!("a = {}", "[".repeat(500_000))).is_err());
    assert!(parse(&format!("[sysctl]\n{}", "net.".repeat(200_000))).is_err());
}
