//! Rings between the process and the kernel, with one producer and one consumer each (`net/xdp/xsk_queue.h`).

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::xdp::{XdpRingFlags, XdpRingOffset};

use super::umem::Mapping;

/// What both ends share, mapped from the socket.
#[derive(Debug)]
struct Shared<T> {
    _mapping: Mapping,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    flags: Option<NonNull<AtomicU32>>,
    slots: NonNull<T>,
    mask: u32,
}

// SAFETY: the pointers refer to the mapping, which belongs to this value.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T: Copy> Shared<T> {
    /// `size` is a power of two.
    fn new(mapping: Mapping, offsets: XdpRingOffset, size: u32) -> io::Result<Self> {
        Ok(Self {
            producer: mapping.at(offsets.producer, 1)?,
            consumer: mapping.at(offsets.consumer, 1)?,
            flags: offsets.flags.map(|flags| mapping.at(flags, 1)).transpose()?,
            slots: mapping.at(offsets.desc, size)?,
            mask: size - 1,
            _mapping: mapping,
        })
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: the pointer was checked to be inside the mapping, and the kernel accesses it atomically.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as in `producer`.
        unsafe { self.consumer.as_ref() }
    }

    fn needs_wakeup(&self) -> bool {
        // SAFETY: as in `producer`.
        let flags = self.flags.map(|flags| unsafe { flags.as_ref() }.load(Ordering::Relaxed));
        flags.is_some_and(|flags| flags & XdpRingFlags::XDP_RING_NEED_WAKEUP.bits() != 0)
    }

    fn slot(&self, index: u32) -> NonNull<T> {
        // SAFETY: the masked index is below the number of slots, which are inside the mapping.
        unsafe { self.slots.add((index & self.mask) as usize) }
    }
}

/// End that writes: fill ring, TX ring.
#[derive(Debug)]
pub(super) struct Producing<T> {
    shared: Shared<T>,
    /// Number of entries that were written, which the kernel does not see until they are published.
    written: u32,
    /// Number of entries that the kernel had taken when it was last asked.
    taken: u32,
}

impl<T: Copy> Producing<T> {
    pub(super) fn new(mapping: Mapping, offsets: XdpRingOffset, size: u32) -> io::Result<Self> {
        Ok(Self { shared: Shared::new(mapping, offsets, size)?, written: 0, taken: 0 })
    }

    /// Writes an entry. Returns `false` if the ring is full.
    pub(super) fn write(&mut self, entry: T) -> bool {
        if self.written.wrapping_sub(self.taken) > self.shared.mask {
            // Acquire: the kernel has read the slots that it releases.
            self.taken = self.shared.consumer().load(Ordering::Acquire);
            if self.written.wrapping_sub(self.taken) > self.shared.mask {
                return false;
            }
        }
        // SAFETY: the slot is inside the mapping, and the kernel does not read it before it is published.
        unsafe { self.shared.slot(self.written).write(entry) };
        self.written = self.written.wrapping_add(1);
        true
    }

    pub(super) fn publish(&self) {
        // Release: the kernel sees the entries before their number.
        self.shared.producer().store(self.written, Ordering::Release);
    }

    /// Number of published entries that the kernel has not taken.
    pub(super) fn waiting(&self) -> u32 {
        self.written.wrapping_sub(self.shared.consumer().load(Ordering::Relaxed))
    }

    pub(super) fn needs_wakeup(&self) -> bool {
        self.shared.needs_wakeup()
    }
}

/// End that reads: RX ring, completion ring.
#[derive(Debug)]
pub(super) struct Consuming<T> {
    shared: Shared<T>,
    read: u32,
    /// End of the entries that are read before the kernel is asked again.
    until: u32,
    /// Maximum number of entries that are read before their slots are released.
    batch: u32,
}

impl<T: Copy> Consuming<T> {
    pub(super) fn new(mapping: Mapping, offsets: XdpRingOffset, size: u32, batch: u32) -> io::Result<Self> {
        Ok(Self { shared: Shared::new(mapping, offsets, size)?, read: 0, until: 0, batch })
    }

    /// Reads an entry. Slots are released after a batch, or when there is no entry.
    pub(super) fn read(&mut self) -> Option<T> {
        if self.read == self.until && !self.fetch() {
            return None;
        }
        // SAFETY: the kernel wrote this slot before it published it, and does not write again until it is released.
        let entry = unsafe { self.shared.slot(self.read).read() };
        self.read = self.read.wrapping_add(1);
        Some(entry)
    }

    fn fetch(&mut self) -> bool {
        // Release: the entries have been read before the kernel writes their slots again.
        self.shared.consumer().store(self.read, Ordering::Release);
        // Acquire: the entries are visible if their number is.
        let written = self.shared.producer().load(Ordering::Acquire);
        let ready = written.wrapping_sub(self.read).min(self.batch);
        self.until = self.read.wrapping_add(ready);
        ready > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OFFSETS: XdpRingOffset = XdpRingOffset { producer: 0, consumer: 64, desc: 192, flags: Some(128) };
    const SIZE: u32 = 4;

    /// Both ends over the same memory: the other end's numbers are copied, as the kernel would publish them.
    fn ends(batch: u32) -> (Producing<u64>, Consuming<u64>) {
        let mapping = || Mapping::anonymous(4_096).unwrap();
        let producing = Producing::new(mapping(), OFFSETS, SIZE).unwrap();
        (producing, Consuming::new(mapping(), OFFSETS, SIZE, batch).unwrap())
    }

    /// What the kernel does between the two rings.
    fn carry(from: &Producing<u64>, to: &Consuming<u64>) {
        let published = from.shared.producer().load(Ordering::Acquire);
        for index in 0..SIZE {
            // SAFETY: both slots are inside their mappings, and this thread is the only user.
            unsafe { to.shared.slot(index).write(from.shared.slot(index).read()) };
        }
        to.shared.producer().store(published, Ordering::Release);
        from.shared.consumer().store(to.shared.consumer().load(Ordering::Acquire), Ordering::Release);
    }

    proptest! {
        #[test]
        fn entries_arrive_once_and_in_order(batch in 1..6_u32, writes in prop::collection::vec(0..7_u32, 0..40)) {
            let (mut producing, mut consuming) = ends(batch);
            let (mut next, mut expected) = (0_u64, 0_u64);
            for count in writes {
                for _ in 0..count {
                    if producing.write(next) {
                        next += 1;
                    }
                }
                producing.publish();
                carry(&producing, &consuming);
                while let Some(entry) = consuming.read() {
                    prop_assert_eq!(entry, expected);
                    expected += 1;
                }
                carry(&producing, &consuming);
            }
            prop_assert_eq!(expected, next);
            prop_assert_eq!(producing.waiting(), 0);
        }
    }

    #[test]
    fn a_full_ring_refuses_an_entry_until_one_is_taken() {
        let (mut producing, mut consuming) = ends(8);
        assert!((0..4).all(|entry| producing.write(entry)));
        producing.publish();
        assert!(!producing.write(4));
        assert_eq!(producing.waiting(), 4);
        carry(&producing, &consuming);
        while consuming.read().is_some() {}
        carry(&producing, &consuming);
        assert!(producing.write(4));
    }
}
