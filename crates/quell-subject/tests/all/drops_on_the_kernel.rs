//! The metric `drops` on a real veth: packets that a full ring loses count in both directions, frames that no protocol wanted
//! do not. Needs root.

use quell_linux::CpuList;
use quell_linux::event::Trigger;
use quell_linux::proc::ProcRoot;
use quell_linux::process::Spawn;
use quell_subject::counters::{Instruments, Watched};
use quell_test_support::lab::{TestLab, UdpProgram};
use quell_test_support::{LabTurn, wait_until};

#[test]
fn only_packets_that_a_full_queue_lost_are_drops() {
    let _turn = LabTurn::wait();
    let Some(mut lab) = TestLab::raise("bench-drops", 1) else { return };
    let server = lab.start(Spawn::new("sleep").args(["600"]));
    let program = UdpProgram::start(&lab, Trigger::Level);
    let watched = Watched {
        server: vec![server.pid()],
        server_napi: Vec::new(),
        pollers: Vec::new(),
        supervisors: Vec::new(),
        generator: Vec::new(),
        client_napi: Vec::new(),
        server_cpus: CpuList::default(),
        client_cpus: CpuList::default(),
        server_devices: vec!["server0".to_owned()],
        irqs: Vec::new(),
    };
    let (proc, mut none) = (ProcRoot::default(), Instruments::default());
    let mut read = || watched.snapshot(&proc, &mut none);
    let rx_dropped = || {
        let interfaces = proc.process(watched.server[0]).net_dev().unwrap();
        interfaces.get("server0").unwrap().rx_dropped
    };
    let before = read();
    let unwanted = rx_dropped();
    if lab.send_unwanted_frames(200).is_none() {
        return;
    }
    wait_until(|| if rx_dropped() >= unwanted + 200 { Ok(()) } else { Err(rx_dropped().to_string()) });
    assert_eq!(watched.between(&before, &read()).drops, Some(0));
    lab.poll_every_second();
    wait_until(|| {
        (0..1_000).for_each(|_| program.send(1));
        match watched.between(&before, &read()).drops {
            Some(0) | None => Err("no drops".to_owned()),
            Some(_) => Ok(()),
        }
    });
}
