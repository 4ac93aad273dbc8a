//! What selects among the sockets of a group at present: nothing, a filter of Quell, or a filter of the server.

use std::collections::BTreeMap;

use quell_change::reuseport_group::{ServersFilter, reason};
use quell_linux::kernel;
use quell_linux::netns::Namespace;
use quell_linux::reuseport::EbpfFilter;
use quell_sampler::{GroupProgram, GroupPrograms, group_programs};

use super::groups::Group;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SteerRequest {
    /// Devices whose queues the filters distinguish; empty means all devices that deliver to a group.
    pub devices: Vec<String>,
    pub udp: bool,
    pub replace_filter: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KnownPrograms {
    /// By namespace inode; the reason if they could not be read.
    by_namespace: BTreeMap<u64, Result<GroupPrograms, String>>,
    /// Reason why an eBPF program that is replaced cannot be kept.
    cannot_pin: Option<String>,
}

/// The filter of a group before Quell's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PresentFilter {
    /// The kernel selects by hash, or a filter of Quell selects.
    NotServers,
    Servers(ServersFilter),
    Unknown(String),
}

impl KnownPrograms {
    pub(super) fn read(&mut self, namespace: &Namespace) {
        self.cannot_pin = EbpfFilter::pins().err().map(|error| error.to_string());
        let programs = group_programs(kernel::sysfs(), namespace).map_err(|error| reason(&error));
        self.by_namespace.insert(namespace.inode(), programs);
    }

    pub fn set(&mut self, namespace: u64, programs: Result<GroupPrograms, String>) {
        self.by_namespace.insert(namespace, programs);
    }

    pub(super) fn of(&self, group: &Group) -> PresentFilter {
        let programs = match self.by_namespace.get(&group.key.namespace) {
            Some(Ok(programs)) => programs,
            Some(Err(why)) => return PresentFilter::Unknown(why.clone()),
            None => return PresentFilter::Unknown("its sockets were not listed".to_owned()),
        };
        match group.members.iter().find_map(|member| programs.get(&member.inode)) {
            Some(GroupProgram::Absent | GroupProgram::Quells) => PresentFilter::NotServers,
            Some(program @ GroupProgram::Classic(code)) => PresentFilter::Servers(ServersFilter {
                program: program.clone(),
                lost: code.is_none().then(|| "its instructions cannot be read".to_owned()),
            }),
            Some(program @ GroupProgram::Ebpf(_)) => {
                PresentFilter::Servers(ServersFilter { program: program.clone(), lost: self.cannot_pin.clone() })
            }
            None => PresentFilter::Unknown("the kernel did not list its sockets".to_owned()),
        }
    }
}
