//! `quell run` with servers. Checks the settings under load, who polls the queue, that no request is lost, and that
//! everything is as before after their exit.

use super::lab::{Launch, ServersLab};
use super::programs;
use super::seen::{MODE, SUSPENDING, UNDER_LOAD, is_suspending, parameters, share_of_busy_polls};
use quell_test_support::wait_until;

#[test]
fn every_server_runs_with_its_mode_and_everything_is_restored() {
    let Some(lab) = ServersLab::raise(1) else { return };
    for program in programs() {
        let before = lab.queues();
        let server = lab.serve(program, 1, Launch::Under(&[MODE])).unwrap();
        let client = lab.start_client(program.client(), server.address, UNDER_LOAD);
        lab.wait_until_connected(&server);
        // An epoll that is set from outside gets its values a moment after its creation.
        wait_until(|| {
            let (queues, values) = (lab.queues(), parameters(&server.epolls()));
            match queues.iter().all(is_suspending) && values.iter().all(|value| *value == SUSPENDING) {
                true => Ok(()),
                false => Err(format!("{}: {queues:?}, {values:?}", program.name())),
            }
        });
        let found = client.end().unwrap();
        assert_eq!(found.failed, 0, "{}: {found:?}", program.name());
        if let Some(share) = share_of_busy_polls(&lab, program, &server) {
            assert!(share > 0.0, "{} never polled its queue", program.name());
        }
        server.stop();
        lab.wait_until_as_before(&before, program.name());
    }
}
