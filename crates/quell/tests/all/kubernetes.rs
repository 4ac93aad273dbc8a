//! The DaemonSet: `quell` with exactly the capabilities of the manifest's containers, in a cgroup namespace of its own,
//! attaches to a program in the control group and the network namespace of another pod.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use quell_test_support::{Lacks, skip};
use serde_json::Value;

use crate::attach_on_the_kernel::stage::{MODE, Stage, wait_until};

const MANIFEST: &str = include_str!("../../../../dist/kubernetes/quell.yaml");
const POD: &str = "0f1e2d3c-1111-2222-3333-444455556666";

/// Lines of a container of the manifest.
fn container(name: &str) -> Vec<&'static str> {
    let is_first = |line: &str| line.trim_start().starts_with("- name: ");
    let mut lines = MANIFEST.lines().skip_while(|line| line.trim_start() != format!("- name: {name}")).skip(1);
    lines.by_ref().take_while(|line| !is_first(line) && line.trim() != "volumes:").collect()
}

/// Options of `setpriv` for the capabilities of a container.
fn capabilities(name: &str) -> String {
    let lines = container(name);
    let list = |key: &str| lines.iter().find_map(|line| line.trim().strip_prefix(key)).unwrap();
    assert_eq!(list("drop: "), "[ALL]");
    let added = list("add: ").trim_matches(['[', ']']).split(", ").map(|name| format!("+{}", name.to_lowercase()));
    added.fold("-all".to_owned(), |all, one| all + "," + &one)
}

#[test]
fn the_manifest_asks_for_host_namespaces_and_no_privileged_container() {
    for line in ["hostNetwork: true", "hostPID: true"] {
        assert!(MANIFEST.lines().any(|found| found.trim() == line), "{line}");
    }
    for name in ["export", "attach"] {
        let lines = container(name);
        assert!(lines.iter().any(|line| line.trim() == "privileged: false"), "{lines:?}");
        assert!(lines.iter().all(|line| line.trim() != "privileged: true"), "{lines:?}");
    }
    assert!(!capabilities("export").contains("net_admin"), "the exporter changes nothing");
}

#[test]
fn the_container_that_attaches_has_the_capabilities_of_the_unit() {
    let unit = include_str!("../../../../dist/quell-attach@.service");
    let bounds = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let of_unit: BTreeSet<String> = bounds.split(' ').map(|name| name.replace("CAP_", "+").to_lowercase()).collect();
    let of_container = capabilities("attach");
    assert_eq!(of_container.split(',').skip(1).map(str::to_owned).collect::<BTreeSet<_>>(), of_unit);
}

/// A hierarchy of control groups with a pod on the systemd driver, and one beside it, in which `quell` runs.
struct Node {
    mount: PathBuf,
    top: PathBuf,
    stage: Stage,
}

impl Node {
    fn raise(test: &str) -> Option<Self> {
        for tool in ["setpriv", "unshare"] {
            if Command::new(tool).arg("--version").output().is_err() {
                skip(Lacks::Tool(tool), format_args!("{tool} is not installed"));
                return None;
            }
        }
        let stage = Stage::of_another_user(test)?;
        let mount = stage.dir.path().join("cgroup");
        fs::create_dir(&mount).unwrap();
        let mounted = Command::new("mount").args(["-t", "cgroup2", "cgroup2"]).arg(&mount).output().unwrap();
        if !mounted.status.success() {
            skip(Lacks::Root, String::from_utf8_lossy(&mounted.stderr));
            return None;
        }
        let top = mount.join(format!("quell-{test}-{}", std::process::id()));
        let node = Self { mount, top, stage };
        fs::create_dir_all(node.group(POD)).unwrap();
        fs::create_dir_all(node.group("of-quell")).unwrap();
        fs::write(node.group(POD).join("cgroup.procs"), node.stage.pid()).unwrap();
        Some(node)
    }

    fn group(&self, pod: &str) -> PathBuf {
        let slice =
            format!("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice", pod.replace('-', "_"));
        self.top.join(slice).join(format!("cri-containerd-{}.scope", "0123456789abcdef".repeat(4)))
    }

    /// `quell` as in a container of the manifest: in the control group of its pod, with its capabilities.
    fn quell(&self, container: &str, words: &[&str]) -> Command {
        let capabilities = capabilities(container);
        let script = "echo $$ > \"$1\"; shift; exec unshare --cgroup setpriv \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(self.group("of-quell").join("cgroup.procs"));
        command.args(["--inh-caps=-all", &format!("--bounding-set={capabilities}")]);
        command.arg(env!("CARGO_BIN_EXE_quell")).args(words).env("QUELL_JOURNAL_DIR", self.stage.journals());
        command
    }

    fn says(&self, container: &str, words: &[&str]) -> String {
        let output = self.quell(container, words).output().unwrap();
        let [text, said] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        assert!(output.status.success(), "{words:?}: {text}{said}");
        text
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Processes leave the groups for that of this process, so that the groups can be removed.
        let is_moved = |group: &Path| {
            let pids = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            pids.lines().for_each(|pid| _ = fs::write(self.mount.join("cgroup.procs"), pid));
        };
        for pod in [POD, "of-quell"] {
            let group = self.group(pod);
            is_moved(&group);
            group.ancestors().take_while(|group| *group != self.mount).for_each(|group| _ = fs::remove_dir(group));
        }
        let _ = Command::new("umount").arg(&self.mount).status();
    }
}

#[test]
fn a_mode_is_attached_to_a_pod_by_its_control_group_with_the_capabilities_of_the_manifest() {
    let Some(node) = Node::raise("kube") else { return };
    let group = node.group(POD);
    let group = group.to_str().unwrap();
    node.says("attach", &["attach", MODE, "--cgroup", group, "--yes"]);
    assert!(node.stage.is_set());

    let report: Value = serde_json::from_str(&node.says("attach", &["top", "-i", "0.2", "-n", "1", "-j"])).unwrap();
    let programs = report["programs"].as_array().unwrap();
    let program = programs.iter().find(|program| program["mode"] == MODE).unwrap();
    assert_eq!((&program["pod"], &program["container"]), (&POD.into(), &"0123456789ab".into()), "{report}");
    let top = node.says("attach", &["top", "-i", "0.2", "-n", "1"]);
    assert!(top.contains("memcached pod/0f1e2d3c"), "{top}");
    let status = node.says("attach", &["status"]);
    assert!(status.contains(&format!("pod {POD}: cannot tell")), "{status}");

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let mut exporter = node.quell("export", &["export", "--all", "-i", "0.2", "--textfile", path]).spawn().unwrap();
    let file = directory.path().join("quell.prom");
    let labels = format!("pod_uid=\"{POD}\",container_id=\"0123456789ab\",mode=\"{MODE}\",");
    let is_exported = || fs::read_to_string(&file).is_ok_and(|text| text.contains(&labels));
    wait_until(is_exported, "the pod is not in the metrics");
    exporter.kill().unwrap();
    exporter.wait().unwrap();
    node.says("attach", &["detach", "--cgroup", group]);
    node.stage.assert_back();
}

#[test]
fn without_net_admin_the_container_of_the_exporter_changes_nothing() {
    let Some(node) = Node::raise("kube-ro") else { return };
    let group = node.group(POD);
    let output =
        node.quell("export", &["attach", MODE, "--cgroup", group.to_str().unwrap(), "--yes"]).output().unwrap();
    assert_eq!(output.status.code(), Some(5), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("CAP_NET_ADMIN is missing"), "{output:?}");
    assert!(!node.stage.is_set());
}
