//! The published page: the tables of the trials, the method, and facts about the servers that the figures do not show.

use quell_mode::DeliveryMode;
use quell_result::facts::HostFacts;

use crate::client::CONNECTIONS;
use crate::program::Program;
use crate::table::{Trials, markdown, working};
use crate::{ATTEMPTS_MAX, Options, RATE_SHARE};

/// Facts about a server that are independent of the figures.
fn to_know(program: Program) -> &'static str {
    match program {
        Program::Memcached => {
            "One epoll per thread (`-t`). With `-N` equal to `-t`, each connection goes to the thread of its queue."
        }
        Program::Redis => "One thread, one epoll: give it a device with one queue, or steer its port to one queue.",
        Program::Nginx => {
            "One epoll per worker process. Any idle worker accepts a connection, so with several queues every worker \
             has connections from all of them."
        }
        Program::NginxReuseport => {
            "The kernel selects the worker by a hash of the addresses, or a filter by queue: with two queues, \
             `quell attach` and `quell run` use `--steer`."
        }
        Program::Haproxy => {
            "One epoll per thread (`nbthread`). With `shards by-thread`, `--steer` gives a thread the connections of \
             one queue."
        }
        Program::HaproxyProxy => {
            "The backend is on the clients' side of the device. Its packets arrive on any queue, so with several queues \
             every thread has connections from all of them, although its clients are steered."
        }
        Program::EnvoyProxy => {
            "One epoll and one listening socket per worker (`--concurrency`; `enable_reuse_port` is the default). The backend \
             is as that of HAProxy."
        }
        Program::GoHttp => {
            "One epoll for all threads, whatever `GOMAXPROCS`, so it can poll only one queue. It is statically \
             linked, so `quell run` sets its epolls from outside."
        }
        Program::TokioEcho => "One epoll for all threads of a runtime, so it can poll only one queue.",
        Program::NodeHttp => "One thread, one epoll, as Redis.",
        Program::Unbound => {
            "One epoll and one UDP socket per thread (`num-threads`; `so-reuseport` is the default). With two queues, \
             `--steer --steer-udp`. It is warmed up before the mode is attached, so each socket reports the queue of its \
             first datagram, which the steered ones need not use."
        }
    }
}

/// The whole page.
pub(crate) fn page(
    options: &Options,
    host: &HostFacts,
    alone: &[(Program, Trials)],
    several: &[(Program, Trials)],
) -> String {
    let mode: DeliveryMode = options.mode.parse().unwrap();
    let notes: String =
        Program::ALL.map(|program| format!("- **{}**: {}\n", program.name(), to_know(program))).concat();
    let disturbed = alone.iter().chain(several).map(|(_, trials)| trials.disturbed_max()).max().unwrap_or(0);
    let (title, how) = (format!("# Servers from packages under `{mode}`"), how(options, host, disturbed));
    let (figures, working) = (markdown(alone), working(alone, several));
    format!(
        "{title}\n\nMade by `make bench-servers`: unmodified programs, each with its usual client, under interrupts \
         (`base`), attached while they run (`quell attach {mode} PID`), and started with the mode (`quell run {mode} \
         -- COMMAND`).\n\n{how}\n\
         ## One queue, one worker\n\n{figures}\n\
         ## Whether the mode works\n\nAlso with two queues and two workers, which share a CPU, so there are no figures. \
         The percentage is the share of all polls of its queues that the server's own threads made.\n\n{working}\n\
         ## Notes about the servers\n\n{notes}"
    )
}

fn how(options: &Options, host: &HostFacts, disturbed: usize) -> String {
    let Options { rounds, rounds_of_two, seconds, .. } = options;
    format!(
        "Linux {release} on {model}, {cpus} CPUs: the server and the NAPI threads of its queues run on one CPU, and \
         the client on the other, connected by a veth pair ([what a veth lab shows](bench.md#what-a-veth-lab-does-not-show)). \
         {rounds} rounds with one queue and {rounds_of_two} with two; each round has a fresh server for `base`, \
         `base` again, `attach` and `run`, in varying order, {seconds} s each, {CONNECTIONS} connections.\n\n\
         - memcached, tokio and Unbound get {share:.0} % of the throughput of `base` in a closed loop. redis-benchmark (`GET`) \
         and wrk support no rate: in a closed loop, the throughput follows from the latency.\n\
         - Figures are medians over the rounds (lowest–highest), then the change from `base` and its interval, computed \
         as in [statistics.md](statistics.md) with a round as block. It is bold if the interval excludes 1.\n\
         - CPU/request is the run time of the server's threads and of the NAPI threads of its queues.\n\
         - *fully*: every epoll with connections, and every queue of these connections, has the mode's values. Epolls \
         and queues correspond one to one, the server polled, interrupts were suspended, and no request failed.\n\
         - In at most {disturbed} rounds of an arm, other work ran on the server's CPU, or packets were dropped, in \
         each of up to {attempts} attempts.\n",
        release = host.kernel_release,
        model = host.cpu_model.as_deref().unwrap_or("an unknown processor"),
        cpus = host.cpus.len(),
        share = RATE_SHARE * 100.0,
        attempts = ATTEMPTS_MAX,
    )
}
