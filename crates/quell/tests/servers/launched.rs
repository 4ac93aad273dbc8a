//! `quell run` with servers: what is set while they serve, who polls their queue then, that no request is lost, and
//! that everything is as before when they have ended.

use crate::lab::{Launch, ServersLab};
use crate::programs;
use crate::seen::{MODE, SUSPENDING, UNDER_LOAD, is_suspending, parameters, share_of_busy_polls};
use quell_test_support::wait_until;

#[test]
fn every_server_serves_with_the_mode_that_it_was_started_with_and_nothing_is_left_of_it() {
    let Some(lab) = ServersLab::raise(1) else { return };
    for program in programs() {
        let before = lab.queues();
        let server = lab.serve(program, 1, Launch::Under(&[MODE])).unwrap();
        let client = lab.start_client(program.client(), server.address, UNDER_LOAD);
        lab.wait_until_connected(&server);
        // A program that is attached to from outside has it a moment after its epoll.
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
