//! Delivery of polled packets: to the socket, to the epoll's ready list (`ep_poll_callback`), and to
//! threads that sleep or spin.

use super::World;
use crate::engine::Ns;
use crate::mechanism::{Link, PacketKind};

impl World {
    pub(crate) fn deliver(&mut self, queue: usize, cpu: usize) {
        let mut taken = std::mem::take(&mut self.queues[queue].taken);
        for packet in &taken {
            match packet.kind {
                PacketKind::Ack => {}
                kind if Self::gro_holds(kind) => {
                    let held = crate::mechanism::Held { packet: *packet, since_ns: self.now_ns };
                    self.queues[queue].held.push(held);
                }
                PacketKind::Part => self.part_reaches_socket(queue, cpu, packet.socket),
                _ => self.reach_socket(queue, cpu, packet.socket, packet.sent_ns),
            }
        }
        taken.clear();
        self.queues[queue].taken = taken;
    }

    fn part_reaches_socket(&mut self, queue: usize, cpu: usize, socket: u32) {
        let state = &mut self.sockets[socket as usize];
        state.napi = Link::to(queue);
        state.rx_cpu = cpu as u32;
        state.parts += 1;
        self.became_readable(socket, cpu);
    }

    pub(crate) fn reach_socket(&mut self, queue: usize, cpu: usize, socket: u32, sent_ns: Ns) {
        self.mark(queue, "delivered");
        let state = &mut self.sockets[socket as usize];
        state.napi = Link::to(queue);
        state.rx_cpu = cpu as u32;
        state.received.push_back(sent_ns);
        let without_interest_in = state.without_interest_in.get();
        if let Some(epoll) = without_interest_in {
            self.epolls[epoll].remember_napi(Some(queue), self.rules.sysctl_busy_poll_usecs);
        }
        self.became_readable(socket, cpu);
    }

    /// Handles a socket that became readable: notifies its reader and its epoll.
    pub(crate) fn became_readable(&mut self, socket: u32, cpu: usize) {
        if let Some(reader) = self.sockets[socket as usize].reader.get() {
            if self.threads[reader].spinning() {
                self.poke(reader);
            } else {
                self.wake(reader, cpu);
            }
        }
        self.became_ready(socket, cpu);
    }

    /// Handles a descriptor that became ready: notifies its epoll.
    pub(crate) fn became_ready(&mut self, socket: u32, cpu: usize) {
        let state = &mut self.sockets[socket as usize];
        let Some(index) = state.epoll.get() else { return };
        let napi = state.napi.get();
        let epoll = &mut self.epolls[index];
        epoll.remember_napi(napi, self.rules.sysctl_busy_poll_usecs);
        if !state.listed {
            state.listed = true;
            epoll.ready.push_back(socket);
        }
        if let Some(thread) = epoll.waiters.pop_front() {
            self.wake(thread, cpu);
        }
        for spinner in 0..self.epoll_spinners[index].len() {
            self.poke(self.epoll_spinners[index][spinner]);
        }
        if let Some(descriptor) = self.epolls[index].outer {
            self.became_ready(descriptor, cpu);
        }
    }

    /// Whether a descriptor is ready. An epoll is ready if one of its descriptors is ready.
    pub(crate) fn descriptor_ready(&self, descriptor: u32) -> bool {
        let state = &self.sockets[descriptor as usize];
        match state.nested.get() {
            Some(inner) => self.epolls[inner].ready.iter().any(|&inside| self.descriptor_ready(inside)),
            None => state.readable(),
        }
    }
}

#[cfg(test)]
mod tests {
    use quell_mode::{EpollParams, NapiSettings};

    use super::*;
    use crate::host::{Costs, HostProfile};
    use crate::mechanism::{Epoll, RxQueue, SimCoalescing, Socket};
    use crate::world::{Client, KernelRules, Traffic, TrafficKind, WorldShape};

    #[test]
    fn a_nested_epoll_makes_the_outer_one_ready_and_gives_it_no_napi_id() {
        const PREFER: EpollParams =
            EpollParams { busy_poll_usecs: 0, busy_poll_budget: quell_mode::NAPI_POLL_WEIGHT, prefer_busy_poll: true };
        let host = HostProfile::shipped("epyc7662-cx5").expect("it ships");
        let shape = WorldShape { queues: 1, epolls: 2, cpus: 1, bound: 64 };
        let traffic = Traffic::new(TrafficKind::NONE, Client::NONE, Vec::new(), 0);
        let mut world = World::new(KernelRules::default(), Costs::new(&host), shape, traffic);
        world.queues.push(RxQueue::new(NapiSettings::default(), &SimCoalescing::NONE, 8, 0));
        let (outer, inner, socket, descriptor) = (0, 1, 0, 1);
        world.epolls.push(Epoll::new(PREFER, 1));
        world.epolls.push(Epoll { outer: Some(descriptor), ..Epoll::new(PREFER, 1) });
        world.sockets.push(Socket { epoll: Link::to(inner), ..Socket::default() });
        world.sockets.push(Socket { epoll: Link::to(outer), nested: Link::to(inner), ..Socket::default() });
        assert!(!world.descriptor_ready(descriptor));
        world.reach_socket(0, 0, socket, 0);
        assert!(world.descriptor_ready(descriptor));
        assert_eq!((world.epolls[outer].napi, world.epolls[inner].napi), (None, Some(0)));
        assert_eq!(world.epolls[outer].ready, [descriptor]);
    }
}
