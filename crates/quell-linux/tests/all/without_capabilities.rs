//! Errors for a caller without capabilities. They name the missing capability. Each test drops the capabilities of its
//! own thread only.

use std::net::UdpSocket;

use crate::common;
use quell_linux::Pid;
use quell_linux::capability::{self, Capability};
use quell_linux::epoll_params::{self, EpollParams, EpollParamsError};
use quell_linux::proc::ProcRoot;
use quell_linux::sched::{self, Policy, SchedError, Scheduling};
use quell_linux::socket_options::{self, SocketOptionError};
use quell_test_support::{Lacks, skip};

fn without_capabilities<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::spawn(|| {
        common::drop_all_capabilities();
        test()
    });
    thread.join().unwrap()
}

#[test]
fn the_set_of_effective_capabilities_is_empty() {
    let set = without_capabilities(|| capability::effective(&ProcRoot::default())).unwrap().unwrap();
    assert_eq!(set.missing(&[Capability::NetAdmin]), [Capability::NetAdmin]);
}

#[test]
fn an_epoll_budget_above_64_is_denied_and_64_is_not() {
    let (high, low) = without_capabilities(|| {
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
        let set = |budget| {
            let params = EpollParams { busy_poll_budget: budget, ..EpollParams::default() };
            epoll_params::set(&epoll, params)
        };
        (set(65), set(64))
    });
    if let Err(error @ EpollParamsError::Unsupported) = low {
        skip(Lacks::KernelFeature, &error);
        return;
    }
    low.unwrap();
    assert!(matches!(high, Err(EpollParamsError::Denied { budget: 65, .. })), "{high:?}");
}

#[test]
fn a_real_time_class_is_denied() {
    let result = without_capabilities(|| {
        let policy = Policy::Fifo { priority: 1 };
        sched::set_scheduling(Pid::of_this_thread(), Scheduling { policy, reset_on_fork: false })
    });
    let error = result.unwrap_err();
    assert!(matches!(error, SchedError::Denied { .. }), "{error:?}");
    assert!(error.to_string().contains("CAP_SYS_NICE"), "{error}");
}

#[test]
fn preferred_busy_poll_on_a_socket_is_denied() {
    let result = without_capabilities(|| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket_options::set_prefer_busy_poll(socket, true)
    });
    let error = result.unwrap_err();
    assert!(matches!(error, SocketOptionError::Denied { .. }), "{error:?}");
    assert!(error.to_string().contains("CAP_NET_ADMIN"), "{error}");
}

#[test]
fn the_files_of_another_users_process_are_denied() {
    let init = Pid::new(1).unwrap();
    let error = match without_capabilities(move || ProcRoot::default().process(init).fds()) {
        Ok(_) => {
            skip(Lacks::Machine, "process 1 belongs to this user and has no additional privileges");
            return;
        }
        Err(error) => error,
    };
    assert!(error.is_denied(), "{error:?}");
    assert!(error.to_string().contains("CAP_SYS_PTRACE"), "{error}");
}
