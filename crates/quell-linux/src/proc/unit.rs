//! `/proc/PID/cgroup`: the systemd unit, container or pod of a process.

use std::{fmt, fs};

use schemars::JsonSchema;
use serde::Serialize;

use super::{ProcDir, ProcError};

/// The kernel appends it to the path of a removed cgroup (`proc_cgroup_show` in `kernel/cgroup/cgroup.c`).
const DELETED: &str = " (deleted)";

impl ProcDir {
    /// Name of the service or scope that contains the process, for example `memcached.service`. `None` if none does, or
    /// if its cgroup is outside the reader's cgroup namespace. The name is as long as the file name of a control group
    /// at most, and can contain any byte but `/`.
    pub fn unit(&self) -> Result<Option<String>, ProcError> {
        Ok(self.control_groups()?.unit)
    }

    /// What contains the process according to the names of its control groups.
    pub fn control_groups(&self) -> Result<ControlGroups, ProcError> {
        let path = self.path().join("cgroup");
        fs::read(&path).map(|bytes| ControlGroups::parse(&bytes)).map_err(|source| ProcError::refused(&path, source))
    }

    /// The pod, container or unit of the process. `None` if it is in none of them.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn place(&self) -> Result<Option<ProgramPlace>, ProcError> {
        Ok(self.control_groups()?.into())
    }
}

/// Pod, container and unit of a process, each absent if its control groups name none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ControlGroups {
    /// UID of a Kubernetes pod.
    pub pod: Option<String>,
    /// The first digits of a container's ID.
    pub container: Option<String>,
    /// Name of a systemd service or scope.
    pub unit: Option<String>,
}

impl ControlGroups {
    /// Parses `/proc/PID/cgroup`.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        Self { pod: in_paths(bytes, pod_in), container: in_paths(bytes, container_in), unit: parse_unit(bytes) }
    }
}

/// Digits of the ID of a container that are shown, as `docker ps` does.
const CONTAINER_DIGITS: usize = 12;
/// Digits of a container's ID.
const CONTAINER_ID: usize = 64;

/// Pod, container or unit of a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProgramPlace {
    /// UID of a Kubernetes pod.
    Pod(String),
    /// The first digits of a container's ID.
    Container(String),
    /// Name of a systemd service or scope.
    Unit(String),
}

/// A container in a pod is described by its pod.
impl From<ControlGroups> for Option<ProgramPlace> {
    fn from(ControlGroups { pod, container, unit }: ControlGroups) -> Self {
        let container = || container.map(ProgramPlace::Container);
        pod.map(ProgramPlace::Pod).or_else(container).or_else(|| unit.map(ProgramPlace::Unit))
    }
}

impl fmt::Display for ProgramPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(uid) => write!(f, "pod {uid}"),
            Self::Container(id) => write!(f, "container {id}"),
            Self::Unit(name) => write!(f, "unit {name}"),
        }
    }
}

/// `kubepods-burstable-pod1_2.slice` or `pod1-2`, below a group whose name begins with `kubepods`. A reader in a cgroup
/// namespace, such as a container, sees a path relative to its own group, `/../../pod1-2/ID`: there the UID must have the
/// form of a UUID.
fn pod_in(path: &str) -> Option<String> {
    let uid = |group: &str| {
        let (_, uid) = group.strip_suffix(".slice").unwrap_or(group).rsplit_once("pod")?;
        let is_uid = !uid.is_empty() && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || b"-_".contains(&byte));
        is_uid.then(|| uid.replace('_', "-"))
    };
    let is_of_kubernetes = path.split('/').any(|group| group.starts_with("kubepods"));
    let is_uuid = |uid: &String| uid.split('-').map(str::len).eq([8, 4, 4, 4, 12]);
    let is_relative = path.starts_with("/../");
    path.split('/').find_map(|group| uid(group).filter(|uid| is_of_kubernetes || (is_relative && is_uuid(uid))))
}

/// `docker-ID.scope`, `libpod-ID.scope` or `ID`, where the ID has 64 digits.
fn container_in(path: &str) -> Option<String> {
    let id = |group: &str| {
        let group = group.strip_suffix(".scope").unwrap_or(group);
        let id = group.rsplit_once('-').map_or(group, |(_, id)| id);
        let is_id = id.len() == CONTAINER_ID && id.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_id.then(|| id[..CONTAINER_DIGITS].to_owned())
    };
    path.rsplit('/').find_map(id)
}

/// Innermost service or scope in the path of the unified hierarchy, or else of systemd's own. On a host whose systemd
/// uses version 1, any mount of version 2 adds the unified hierarchy, with all processes in its root.
#[must_use]
pub fn parse_unit(bytes: &[u8]) -> Option<String> {
    in_paths(bytes, unit_in)
}

/// What `find` finds in the path of the unified hierarchy, or else in that of systemd's own.
fn in_paths<T>(bytes: &[u8], find: impl Fn(&str) -> Option<T>) -> Option<T> {
    let text = String::from_utf8_lossy(bytes);
    let path_in = |is_it: fn(&str, &str) -> bool| {
        let lines = text.lines().filter_map(|line| {
            // hierarchy-ID:controller-list:path, where the path may contain colons.
            let mut fields = line.splitn(3, ':');
            Some((fields.next()?, fields.next()?, fields.next()?))
        });
        let path = lines.filter(|(id, controllers, _)| is_it(id, controllers)).map(|(_, _, path)| path).next()?;
        find(path.strip_suffix(DELETED).unwrap_or(path))
    };
    path_in(|id, controllers| id == "0" && controllers.is_empty())
        .or_else(|| path_in(|_, controllers| controllers.split(',').any(|name| name == "name=systemd")))
}

fn unit_in(path: &str) -> Option<String> {
    let is_unit = |name: &&str| name.ends_with(".service") || name.ends_with(".scope");
    path.rsplit('/').find(is_unit).map(|name| unescaped(name).to_owned())
}

/// Name of the unit whose cgroup has this name. systemd puts an underscore before names that the kernel reserves, such
/// as `cpu.service`, and before names with an underscore (`cg_escape`). Other escapes (`\x2d`) are part of the unit's
/// name.
pub(crate) fn unescaped(cgroup: &str) -> &str {
    cgroup.strip_prefix('_').unwrap_or(cgroup)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pid;
    use crate::proc::ProcRoot;

    #[test]
    fn the_innermost_service_or_scope_is_the_unit() {
        let unit = |text: &str| parse_unit(text.as_bytes());
        assert_eq!(unit("0::/system.slice/memcached.service\n").as_deref(), Some("memcached.service"));
        let container = "0::/system.slice/docker-1f.scope/init.scope/app\n";
        assert_eq!(unit(container).as_deref(), Some("init.scope"));
        let pod = "0::/kubepods.slice/kubepods-pod1_2.slice/cri-containerd-ab.scope\n";
        assert_eq!(unit(pod).as_deref(), Some("cri-containerd-ab.scope"));
        assert_eq!(unit("0::/user.slice\n"), None);
        assert_eq!(unit("0::/kubepods/burstable/pod1/0af\n"), None);
        assert_eq!(unit(""), None);
    }

    #[test]
    fn a_program_is_in_a_pod_else_in_a_container_else_in_a_unit() {
        let place = |text: &str| {
            Option::<ProgramPlace>::from(ControlGroups::parse(text.as_bytes())).map(|place| place.to_string())
        };
        let id = "0123456789abcdef".repeat(4);
        let of = |path: &str| place(&format!("0::{path}\n"));
        assert_eq!(of("/system.slice/nginx.service").as_deref(), Some("unit nginx.service"));
        let docker = of(&format!("/system.slice/docker-{id}.scope"));
        assert_eq!(docker.as_deref(), Some("container 0123456789ab"));
        assert_eq!(of(&format!("/docker/{id}")).as_deref(), Some("container 0123456789ab"));
        let slice = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1f_2e.slice";
        assert_eq!(of(&format!("{slice}/cri-containerd-{id}.scope")).as_deref(), Some("pod 1f-2e"));
        assert_eq!(of(&format!("/kubepods/besteffort/pod1f-2e/{id}")).as_deref(), Some("pod 1f-2e"));
        let uid = "0f1e2d3c-1111-2222-3333-444455556666";
        let neighbour = of(&format!("/../../pod{uid}/{id}"));
        assert_eq!(neighbour, Some(format!("pod {uid}")), "seen by a container");
        assert_eq!(of(&format!("/../../pod1f-2e/{id}")).as_deref(), Some("container 0123456789ab"));
        assert_eq!(of("/machine.slice/tripod2.service").as_deref(), Some("unit tripod2.service"));
        assert_eq!((of("/user.slice"), place("")), (None, None));
    }

    #[test]
    fn colons_in_a_path_do_not_change_the_unit() {
        let unit = |text: &str| parse_unit(text.as_bytes());
        let hybrid = "4:cpu,cpuacct:/dnsmasq@fd00::1.service\n\
                      1:name=systemd:/system.slice/dnsmasq@fd00::1.service\n\
                      0::/system.slice/dnsmasq@fd00::1.service\n";
        assert_eq!(unit(hybrid).as_deref(), Some("dnsmasq@fd00::1.service"));
        let misleading = "4:cpu:/a0::/b.service\n3:pids:/name=systemd:/c.service\n0::/d.service\n";
        assert_eq!(unit(misleading).as_deref(), Some("d.service"));
        assert_eq!(unit("10::/a.service\n"), None, "the hierarchy is 10");
        assert_eq!(unit("0:name=systemd:/a.service\n").as_deref(), Some("a.service"));
        assert_eq!(
            unit("0::/k.slice:cri-containerd:0af.service\n").as_deref(),
            Some("k.slice:cri-containerd:0af.service")
        );
    }

    #[test]
    fn an_empty_unified_hierarchy_does_not_hide_the_unit_of_systemd() {
        let unit = |text: &str| parse_unit(text.as_bytes());
        assert_eq!(unit("4:cpu:/a.service\n1:name=systemd:/b.service\n0::/\n").as_deref(), Some("b.service"));
        assert_eq!(unit("4:cpu:/a.service\n1:name=systemd:/b.service\n").as_deref(), Some("b.service"));
        assert_eq!(unit("4:cpu:/a.service\n"), None);
    }

    #[test]
    fn escapes_removed_groups_and_namespaces_are_understood() {
        let unit = |text: &str| parse_unit(text.as_bytes());
        assert_eq!(unit("0::/system.slice/a\\x2db.service\n").as_deref(), Some("a\\x2db.service"));
        assert_eq!(unit("0::/system.slice/_cpu.service\n").as_deref(), Some("cpu.service"));
        assert_eq!(unit("0::/system.slice/a.service (deleted)\n").as_deref(), Some("a.service"));
        assert_eq!(unit("0::/../../system.slice/a.service\n").as_deref(), Some("a.service"));
        assert_eq!(unit("0::/../..\n"), None);
    }

    #[test]
    fn the_file_of_this_process_is_read() {
        ProcRoot::default().process(Pid::of_this_process()).unit().unwrap();
    }
}
