//! Description of the measured machine.

use quell_linux::Pid;
use quell_linux::kernel::Kernel;
use quell_linux::proc::ProcRoot;
use quell_linux::sched::{self, SchedError};

use crate::result::HostFacts;

impl HostFacts {
    /// Reads the facts. Facts that the machine does not report are absent.
    ///
    /// # Errors
    /// When the kernel does not report the CPUs that this process may use.
    pub fn read(proc: &ProcRoot) -> Result<Self, SchedError> {
        let kernel = Kernel::running();
        let cpus = sched::affinity(Pid::of_this_process())?;
        Ok(Self {
            kernel_release: kernel.release,
            kernel_version: kernel.version,
            kernel_command_line: proc.kernel_cmdline().ok(),
            cpu_model: proc.cpu_model_name().ok().flatten(),
            cpus: cpus.iter().collect(),
            busy_poll_us: proc.busy_poll_us().ok(),
            busy_read_us: proc.busy_read_us().ok(),
        })
    }
}
