//! Finds the nearest alternative to a mode that the guest's kernel refuses. Each alternative is set, verified and
//! undone before it is reported.

use quell_change::journal::{Journal, JournalError, Purpose};
use quell_change::transaction::{ChangeError, Transaction};
use quell_linux::InterfaceName;
use quell_linux::netdev::{DeviceThreadingError, device_threading, set_device_threading};
use quell_linux::pidfd::{DuplicatedFd, PidFd, PidFdError};
use quell_linux::proc::{FdKind, ProcError, ProcRoot, ProcessIdentity};
use quell_linux::socket_options::{self, SocketOptionError};
use quell_linux::sysfs::{Sysfs, SysfsError};
use quell_mode::{DeliveryMode, EpollParams, NapiSettings, Nearest, Offered, Threaded};
use quell_vm::nic::GuestNic;

/// The server and its device, whose settings are tried.
pub(super) struct NearestFinder<'a> {
    pub(super) nic: &'a GuestNic,
    pub(super) device: InterfaceName,
    pub(super) server: ProcessIdentity,
    /// File descriptors of the server's epolls. Empty if the kernel does not report epoll parameters.
    pub(super) epolls: Vec<i32>,
    pub(super) journal: &'a Journal,
}

/// Reason why the alternative cannot be set either.
#[derive(Debug, thiserror::Error)]
enum NotNear {
    #[error(transparent)]
    Sysfs(#[from] SysfsError),
    #[error(transparent)]
    Threading(#[from] DeviceThreadingError),
    #[error(transparent)]
    Change(#[from] ChangeError),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Proc(#[from] ProcError),
    #[error(transparent)]
    PidFd(#[from] PidFdError),
    #[error(transparent)]
    SocketOption(#[from] SocketOptionError),
    #[error("the kernel reports different values than were set")]
    ReadBack,
}

impl NearestFinder<'_> {
    /// Returns the nearest alternative, if this kernel accepts it.
    pub(super) fn nearest(&self, mode: &DeliveryMode) -> Option<Nearest> {
        mode.nearest(self.offered()).filter(|nearest| self.try_out(nearest).is_ok())
    }

    fn offered(&self) -> Offered {
        let sysfs = Sysfs::of(&self.nic.namespace).ok();
        let class = sysfs.as_ref().map(|sysfs| sysfs.net_class(&self.device));
        let sockets = self.sockets().unwrap_or_default();
        Offered {
            device_deferral: class.as_ref().is_some_and(|class| class.napi_defer_hard_irqs().is_ok()),
            device_threads: class.as_ref().is_some_and(|class| class.threaded().is_ok()),
            epoll_parameters: !self.epolls.is_empty(),
            socket_busy_poll: sockets.iter().any(|socket| socket_options::prefer_busy_poll(socket).is_ok()),
        }
    }

    /// Duplicates the server's sockets.
    fn sockets(&self) -> Result<Vec<DuplicatedFd>, NotNear> {
        let fds = ProcRoot::default().process(self.server.pid).fds()?;
        let pidfd = PidFd::open(self.server.pid)?;
        let sockets = fds.into_iter().filter(|fd| matches!(fd.kind, FdKind::Socket { .. }));
        sockets.map(|fd| Ok(pidfd.duplicate(fd.number)?)).collect()
    }

    /// Sets the alternative, verifies it and undoes it.
    fn try_out(&self, nearest: &Nearest) -> Result<(), NotNear> {
        let tried = self.take(nearest).and_then(|()| self.take_epolls(nearest.epoll));
        let undone = self
            .take(&Nearest { socket_busy_poll_usecs: nearest.socket_busy_poll_usecs.map(|_| 0), ..Nearest::default() });
        tried.and(undone)
    }

    /// Sets the parameters of the server's epolls and reverts them.
    fn take_epolls(&self, params: EpollParams) -> Result<(), NotNear> {
        if params == EpollParams::default() {
            return Ok(());
        }
        let mut transaction = Transaction::begin(self.journal, "nearest", Purpose::Lab)?;
        for fd in &self.epolls {
            transaction.set_epoll(self.server, *fd, params)?;
        }
        transaction.revert()?;
        Ok(())
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
