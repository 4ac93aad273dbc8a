//! Compares the order in which closed-loop senders work, against one unmodified memcached. The senders are the blind
//! sender, `quell-load` with one request per response, `quell-load` in batches, and any other program. The lab is a
//! plain veth pair without NAPI threads: the sender's softirq processes the packets. Rounds are interleaved; each round
//! runs every sender under every mode. `docs/results/generator.md` has results.
//!
//! `cargo bench -p quell-load --bench generator_limit -- closed-loop [--rounds N] [--seconds S] [--quell FILE --mode MODE]
//! [--beside COMMAND]`, as root. `--quell` is the program that attaches memcached to `--mode`; without it all rounds run
//! under `base`. COMMAND is a shell command that loads `$HOST:$PORT` with `$CONNECTIONS` connections for `$SECONDS`
//! seconds and prints `QPS = NUMBER`.
//!
//! All senders use 200-byte values and 30-byte keys, with one request in flight per connection.

mod sender;
mod server;

use std::error::Error;

use quell_linux::Pid;
use quell_linux::sched::set_affinity;
use quell_stats::Spread;

use crate::lab::{CLIENT_CPU, Interrupts, Lab};
use sender::{Reached, Sender};
use server::Server;

/// Options of the benchmark.
pub(super) struct Options {
    rounds: usize,
    seconds: u32,
    /// Path of the program that attaches memcached, and the mode.
    attach: Option<(String, String)>,
    /// Shell command that runs another sender.
    beside: Option<String>,
}

type Samples = Vec<Reached>;

pub(crate) fn run(arguments: impl Iterator<Item = String>) -> Result<(), Box<dyn Error>> {
    let options = options(arguments)?;
    let lab = Lab::new(Interrupts::Softirq)?;
    set_affinity(Pid::of_this_thread(), &[CLIENT_CPU].into_iter().collect())?;
    let server = Server::start(&lab)?;
    let mut senders = vec![Sender::Blind, Sender::EachResponse, Sender::Batched];
    senders.extend(options.beside.clone().map(Sender::Beside));
    let modes = if options.attach.is_some() { 2 } else { 1 };
    let mut samples: Vec<Vec<Samples>> = vec![vec![Vec::new(); senders.len()]; modes];
    for round in 0..options.rounds {
        for turn in 0..modes {
            let mode = (round + turn) % modes;
            let attached = match (&options.attach, mode) {
                (Some((quell, name)), 1) => Some(server.attach(&lab, quell, name)?),
                _ => None,
            };
            for turn in 0..senders.len() {
                let sender = (round + turn) % senders.len();
                let reached = senders[sender].load(&lab, &server, &options)?;
                eprintln!("{} {}: {:.0}/s", mode_name(&options, mode), senders[sender].name(), reached.per_s);
                samples[mode][sender].push(reached);
            }
            drop(attached);
        }
    }
    for (mode, samples) in samples.iter().enumerate() {
        table(mode_name(&options, mode), &senders, samples);
    }
    Ok(())
}

fn mode_name(options: &Options, mode: usize) -> &str {
    match (&options.attach, mode) {
        (Some((_, name)), 1) => name,
        _ => "base",
    }
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, Box<dyn Error>> {
    let mut options = Options { rounds: 10, seconds: 3, attach: None, beside: None };
    let (mut quell, mut mode) = (None, "suspend200".to_owned());
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--rounds" => options.rounds = value.parse()?,
            "--seconds" => options.seconds = value.parse()?,
            "--quell" => quell = Some(value),
            "--mode" => mode = value,
            "--beside" => options.beside = Some(value),
            _ => return Err(format!("unknown option {name}").into()),
        }
    }
    options.attach = quell.map(|quell| (quell, mode));
    Ok(options)
}

/// Prints requests per second, their ratios to the first and last senders of the same round, and CPU shares.
fn table(mode: &str, senders: &[Sender], samples: &[Samples]) {
    let last = &senders[senders.len() - 1];
    println!(
        "\n| {mode} | requests/s | of the {} | of {} | CPU of the sender | CPU of memcached |",
        Sender::Blind.name(),
        last.name()
    );
    println!("| --- | --- | --- | --- | --- | --- |");
    let per_s = |samples: &Samples| samples.iter().map(|reached| reached.per_s).collect::<Vec<_>>();
    for (sender, own) in senders.iter().zip(samples) {
        let ratios = |to: &Samples| -> Vec<f64> {
            per_s(own).iter().zip(per_s(to)).map(|(own, reference)| own / reference).collect()
        };
        let share = |share: fn(&Reached) -> Option<f64>| spread(own.iter().map(share), 2);
        println!(
            "| {} | {} | {} | {} | {} | {} |",
            sender.name(),
            spread(per_s(own).into_iter().map(Some), 0),
            spread(ratios(&samples[0]).into_iter().map(Some), 2),
            spread(ratios(&samples[samples.len() - 1]).into_iter().map(Some), 2),
            share(|reached| reached.sender_share),
            share(|reached| reached.server_share),
        );
    }
}

/// Formats the median and, in parentheses, the lowest and highest value.
fn spread(values: impl IntoIterator<Item = Option<f64>>, decimals: usize) -> String {
    match Spread::of(values) {
        Some(Spread { median, min, max, .. }) => format!("{median:.decimals$} ({min:.decimals$}–{max:.decimals$})"),
        None => "–".to_owned(),
    }
}
