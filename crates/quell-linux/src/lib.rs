//! Typed access to every system call, netlink message, /proc file and /sys file that Quell uses, with one module per
//! interface. This crate contains no policy. Its callers interpret values and decide about changes.
//!
//! Pure functions parse external bytes once into types that hold only valid values. A value that the kernel does not
//! report is `None`, never zero.

pub mod address;
pub mod af_xdp;
mod bit_mask;
pub mod boot;
pub mod bpf;
pub mod capability;
pub mod cgroup;
pub mod clock;
mod cpu_list;
pub mod epoll_params;
pub mod ethtool;
pub mod event;
pub mod executable;
pub mod file;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod interface;
pub mod io_uring;
pub mod io_uring_polling;
pub mod kcmp;
pub mod kernel;
pub mod link;
mod napi_id;
pub mod netdev;
pub mod netlink;
pub mod netns;
pub mod output_file;
pub mod own_file;
pub mod perf_event;
mod pid;
pub mod pidfd;
pub mod proc;
pub mod process;
pub mod queue_drops;
pub mod reuseport;
pub mod sched;
pub mod service_manager;
pub mod settings_files;
pub mod shell;
pub mod signal;
pub mod signal_queue;
pub mod sock_diag;
pub mod socket_options;
pub mod ssh_session;
pub mod sysfs;
pub mod tcp;
pub mod udp;
mod unpreempted;
pub mod visible;
pub mod wait_calls;
pub mod xdp_diag;

pub use cpu_list::{CPU_LIMIT, CpuList, CpuListError, CpuSetReadError};
pub use interface::{Ifindex, InterfaceName, InvalidIfindex, InvalidInterfaceName, InvalidMacAddress, MacAddress};
pub use napi_id::{InvalidNapiId, NapiId};
pub use pid::{Pid, PidParseError, name_this_thread};
