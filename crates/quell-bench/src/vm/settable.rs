//! Finds the settings of a mode that this guest accepts, by netlink and `EPIOCSPARAMS` as on any host. If the kernel
//! refuses a mode, the nearest mode is tried, verified and undone. A reported alternative is therefore one that this
//! kernel accepts.

use quell_linux::netdev::{DeviceThreadingError, Netdev, device_threading, set_device_threading};
use quell_linux::pidfd::{DuplicatedFd, PidFd, PidFdError};
use quell_linux::proc::{FdKind, ProcError, ProcRoot};
use quell_linux::socket_options::{self, SocketOptionError};
use quell_linux::sysfs::{Sysfs, SysfsError};
use quell_linux::{InterfaceName, Pid};
use quell_mode::{DeliveryMode, EpollParams, NapiSettings, Nearest, Offered, Threaded};
use quell_vm::nic::{End, GuestNic};

use super::guest::SERVER_CPU;
use super::interrupts::Refusal;
use super::interrupts::SettingsReadBack;
use crate::experiment::needs_launch;
use crate::lab::napi::{QueueError, Queues};
use crate::server::{ServerError, Worker};

/// This CPU exists if a mode needs it: see [`super::Request::cpus`].
const SPARE_CPU: u32 = 2;

/// Settings interface of the lab's server side.
pub(super) struct Settable {
    /// The queues if the kernel can report and set NAPI settings; otherwise the reason why not.
    queues: Result<Queues, String>,
    workers: Vec<Worker>,
    nic: GuestNic,
    device: InterfaceName,
    server: Pid,
}

/// Why the nearest alternative to a mode cannot be set either.
#[derive(Debug, thiserror::Error)]
enum NotNear {
    #[error(transparent)]
    Sysfs(#[from] SysfsError),
    #[error(transparent)]
    Threading(#[from] DeviceThreadingError),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error(transparent)]
    Proc(#[from] ProcError),
    #[error(transparent)]
    PidFd(#[from] PidFdError),
    #[error(transparent)]
    SocketOption(#[from] SocketOptionError),
    #[error("it did not read back as it was set")]
    ReadBack,
}

impl Settable {
    pub(super) fn new(nic: GuestNic, server: Pid, workers: Vec<Worker>) -> Self {
        let device = InterfaceName::new(End::Server.name())
            .unwrap_or_else(|error| unreachable!("a name of quell_vm's: {error}"));
        let queues = || -> Result<Queues, QueueError> {
            let mut queues = Queues::of(Netdev::open_in(&nic.namespace)?, nic.ifindex, device.as_str(), 1)?;
            queues.set(&NapiSettings::default())?;
            Ok(queues)
        };
        let queues = queues().map_err(|error| error.to_string());
        Self { queues, workers, nic, device, server }
    }

    /// Sets a mode and verifies it.
    ///
    /// # Errors
    /// The reason why it cannot be set, in words.
    pub(super) fn set(&mut self, mode: &DeliveryMode) -> Result<SettingsReadBack, String> {
        if let Some(requirement) = needs_launch(mode) {
            return Err(requirement.to_string());
        }
        let queues = match &mut self.queues {
            Ok(queues) => queues,
            // On a new kernel the queues already have the settings of `base`, and nothing here has changed them.
            Err(_) if is_base(mode) => return Ok(SettingsReadBack { napi: Vec::new(), epoll: Vec::new() }),
            Err(reason) => return Err(reason.clone()),
        };
        let napi = queues.set(&mode.napi()).map_err(|error| error.to_string())?;
        let polls_without_end = mode.napi().threaded == Threaded::BusyPoll;
        let cpu = if polls_without_end { SPARE_CPU } else { SERVER_CPU };
        queues.pinned_threads(&[cpu]).map_err(|error| error.to_string())?;
        let epoll = self.set_epolls(mode.epoll().unwrap_or_default()).map_err(|error| error.to_string())?;
        Ok(SettingsReadBack { napi, epoll })
    }

    fn set_epolls(&self, asked: EpollParams) -> Result<Vec<EpollParams>, ServerError> {
        self.workers.iter().map(|worker| worker.set(asked)).collect()
    }

    /// The refusal of a mode, with the nearest alternative if this kernel accepts it.
    pub(super) fn refusal(&self, mode: &DeliveryMode, reason: String) -> Refusal {
        let nearest = mode.nearest(self.offered()).filter(|nearest| self.try_out(nearest).is_ok());
        Refusal { reason, nearest }
    }

    fn offered(&self) -> Offered {
        let sysfs = Sysfs::of(&self.nic.namespace).ok();
        let class = sysfs.as_ref().map(|sysfs| sysfs.net_class(&self.device));
        let sockets = self.sockets().unwrap_or_default();
        Offered {
            device_deferral: class.as_ref().is_some_and(|class| class.napi_defer_hard_irqs().is_ok()),
            device_threads: class.as_ref().is_some_and(|class| class.threaded().is_ok()),
            epoll_parameters: self.workers.first().is_some_and(|worker| worker.params().is_ok()),
            socket_busy_poll: sockets.iter().any(|socket| socket_options::prefer_busy_poll(socket).is_ok()),
        }
    }

    /// Duplicates of the server's sockets.
    fn sockets(&self) -> Result<Vec<DuplicatedFd>, NotNear> {
        let fds = ProcRoot::default().process(self.server).fds()?;
        let pidfd = PidFd::open(self.server)?;
        let sockets = fds.into_iter().filter(|fd| matches!(fd.kind, FdKind::Socket { .. }));
        sockets.map(|fd| Ok(pidfd.duplicate(fd.number)?)).collect()
    }

    /// Sets the alternative, verifies it and undoes it.
    fn try_out(&self, nearest: &Nearest) -> Result<(), NotNear> {
        let tried = self.take(nearest);
        let undone = self
            .take(&Nearest { socket_busy_poll_usecs: nearest.socket_busy_poll_usecs.map(|_| 0), ..Nearest::default() });
        tried.and(undone)
    }

    fn take(&self, nearest: &Nearest) -> Result<(), NotNear> {
        let NapiSettings { defer_hard_irqs, gro_flush_timeout_ns, threaded, .. } = nearest.device;
        let sysfs = Sysfs::of(&self.nic.namespace)?;
        let class = sysfs.net_class(&self.device);
        class.set_napi_defer_hard_irqs(defer_hard_irqs)?;
        class.set_gro_flush_timeout_ns(gro_flush_timeout_ns)?;
        let by_threads = threaded != Threaded::Off;
        if device_threading(&self.nic.namespace, &self.device)? != by_threads {
            set_device_threading(&self.nic.namespace, &self.device, by_threads)?;
        }
        if nearest.epoll != EpollParams::default() || self.offered().epoll_parameters {
            self.set_epolls(nearest.epoll)?;
        }
        if let Some(usecs) = nearest.socket_busy_poll_usecs {
            self.set_sockets(usecs)?;
        }
        let same = class.napi_defer_hard_irqs()? == defer_hard_irqs
            && class.gro_flush_timeout_ns()? == gro_flush_timeout_ns
            && device_threading(&self.nic.namespace, &self.device)? == by_threads;
        if same { Ok(()) } else { Err(NotNear::ReadBack) }
    }

    fn set_sockets(&self, busy_poll_usecs: u32) -> Result<(), NotNear> {
        for socket in self.sockets()? {
            socket_options::set_busy_poll_us(&socket, busy_poll_usecs)?;
            socket_options::set_prefer_busy_poll(&socket, busy_poll_usecs > 0)?;
            if socket_options::busy_poll_us(&socket)? != busy_poll_usecs {
                return Err(NotNear::ReadBack);
            }
        }
        Ok(())
    }
}

fn is_base(mode: &DeliveryMode) -> bool {
    mode.napi() == NapiSettings::default() && mode.epoll().unwrap_or_default() == EpollParams::default()
}
