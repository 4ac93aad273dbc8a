//! Servers that contain no code for delivery modes, in a lab, each as packaged and with its real client. Needs root,
//! Linux 6.13 and the servers; reports servers that are skipped.

mod attached;
#[allow(dead_code, reason = "the bench uses the rest")]
mod client;
mod fixtures;
mod kills;
#[allow(dead_code, reason = "the bench uses the rest")]
mod lab;
mod launched;
mod program;
mod seen;
pub(crate) mod steered;
mod system_calls;

use client::Effort;
use lab::{Launch, ServersLab};
use program::Program;
use quell_result::facts::WorkerFacts;
use quell_test_support::{Lacks, skip_part, wait_until};

/// Whether `make test-servers` runs the tests, which builds servers, installs more of them and takes longer.
fn all_of_it() -> bool {
    std::env::var_os("QUELL_TEST_SERVERS").is_some_and(|wanted| wanted == "all")
}

/// Whether only `make test-servers` tries a server: it must be built, is not installed for `make test`, or is another
/// configuration of one that is.
fn is_left_to_test_servers(program: Program) -> bool {
    use Program::{EnvoyProxy, GoHttp, HaproxyProxy, NodeHttp, TokioEcho, Unbound};
    matches!(program, GoHttp | TokioEcho | HaproxyProxy | EnvoyProxy | NodeHttp | Unbound)
}

/// Servers that can be tested here. Reports the others with the reason.
fn programs() -> Vec<Program> {
    let can_be_tried = |program: &Program| {
        let why = match program {
            program if is_left_to_test_servers(*program) && !all_of_it() => {
                Some((Lacks::LeftTo("make test-servers"), "it takes longer".to_owned()))
            }
            program => program.missing().map(|why| (Lacks::Server(program.name()), why)),
        };
        if let Some((lacks, why)) = &why {
            skip_part(*lacks, format_args!("{}: {why}", program.name()));
        }
        why.is_none()
    };
    Program::ALL.into_iter().filter(can_be_tried).collect()
}

#[test]
fn every_server_answers_its_real_client_in_the_lab() {
    let Some(lab) = ServersLab::raise(1) else { return };
    for program in programs() {
        let server = lab.serve(program, 1, Launch::Plain).unwrap();
        let client = lab.start_client(program.client(), server.address, Effort::WarmUp);
        lab.wait_until_connected(&server);
        let one_queue = |epolls: &[lab::SeenEpoll]| {
            let arrive = |facts: &WorkerFacts| facts.connections_without_napi == 0 && facts.napi_ids.len() == 1;
            !epolls.is_empty() && epolls.iter().all(|epoll| arrive(&epoll.facts))
        };
        wait_until(|| {
            let epolls = server.epolls();
            if one_queue(&epolls) { Ok(()) } else { Err(format!("{}: {epolls:?}", program.name())) }
        });
        let found = client.end().unwrap();
        assert!(found.answered > 1_000 && found.failed == 0, "{}: {found:?}", program.name());
        server.stop();
    }
}
