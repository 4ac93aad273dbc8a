//! The page that the figures are published on: what was measured and how, around the tables. What the tables say is said by
//! the trials; what is to be known of a server beyond them is here.

use quell_bench::facts::HostFacts;
use quell_mode::DeliveryMode;

use crate::client::CONNECTIONS;
use crate::program::Program;
use crate::table::{Trials, markdown};
use crate::{ATTEMPTS_MAX, Options, RATE_SHARE};

/// What a server is like, whatever the figures say.
fn to_know(program: Program) -> &'static str {
    match program {
        Program::Memcached => {
            "An epoll for each thread of `-t`. With `-N` as large as `-t` it gives each connection to the thread of its queue; \
             without, each thread has connections of all queues."
        }
        Program::Redis => "One thread, one epoll: give it a device of one queue, or steer its port to one queue.",
        Program::Nginx => {
            "An epoll for each worker process, and whichever worker is free takes the connection: with several queues \
             every worker has connections of all of them."
        }
        Program::NginxReuseport => {
            "As nginx, but the kernel chooses the worker: by a hash of the addresses, unless a \
             filter chooses by queue: with two queues it is attached to, and started, with `--steer`."
        }
        Program::Haproxy => {
            "An epoll for each thread of `nbthread`; with `shards by-thread` a listening socket for each too, so that `--steer` \
             gives a thread the connections of one queue. Here it answers by itself: as a proxy it has connections to servers \
             too, which come back by any queue."
        }
        Program::GoHttp => {
            "One epoll for all threads, whatever `GOMAXPROCS`: it can poll one queue. A static program: `quell run` \
             attaches to it from outside."
        }
        Program::TokioEcho => "One epoll for all threads of a runtime, whatever their number: it can poll one queue.",
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
    let (title, how) = (format!("# Servers from packages under `{mode}`"), how(options, host));
    let (alone, several) = (markdown(alone), markdown(several));
    format!(
        "{title}\n\nMade by `make bench-servers`. Unmodified programs, each as its package or its language's library has it, \
         each asked by its own client: with interrupts (`base`), with the mode given from outside while it runs \
         (`quell attach {mode} PID`), and started with it (`quell run {mode} -- COMMAND`).\n\n{how}\n\
         ## One queue, one worker\n\n{alone}\n\
         ## Two queues, two workers\n\nThe workers share a CPU here, so the figures say less than whether it works.\n\n\
         {several}\n## To be known of each\n\n{notes}"
    )
}

fn how(options: &Options, host: &HostFacts) -> String {
    let Options { rounds, rounds_of_two, seconds, .. } = options;
    format!(
        "Linux {release} on {model}, {cpus} CPUs: the server and its queues' NAPI threads on one, the client on the other, \
         a veth pair between them ([what a veth lab shows](bench.md#what-it-measures)). {rounds} \
         rounds with one queue and {rounds_of_two} with two; in each a fresh server for `base`, `base` again, `attach` and \
         `run`, in turns, {seconds} s each after a warm-up, {CONNECTIONS} connections.\n\n\
         - memcached and tokio are asked by `quell load` at a fixed rate, {share:.0} % of what `base` reached in a closed \
         loop just before in the same round. redis-benchmark (`GET`) and wrk have no rate: they ask in a closed loop, each \
         connection again as soon as it has its answer, so that their requests a second follow from the latency.\n\
         - Figures are medians over the rounds (lowest–highest). `against base` is the ratio with its interval, by \
         the method of [statistics.md](statistics.md) with a round as block; in bold where the interval excludes no change.\n\
         - CPU/request is the run time of the server's threads and of its queues' NAPI threads; a mode that polls at an \
         idle moment shows there. *polls by the server* are those of all polls of its queues that its own threads made; \
         *found suspended* are those of them that found the queue's interrupt suspended.\n\
         - *fully*: every epoll with connections and every queue that they arrive by has the mode's values, each epoll \
         has the connections of one queue and each queue one epoll, the server polled, interrupts were suspended, and \
         no request failed.\n\
         - *disturbed* are rounds in which something else ran on the server's CPU, or packets were dropped, in each of up \
         to {attempts} attempts.\n",
        release = host.kernel_release,
        model = host.cpu_model.as_deref().unwrap_or("an unknown processor"),
        cpus = host.cpus.len(),
        share = RATE_SHARE * 100.0,
        attempts = ATTEMPTS_MAX,
    )
}
