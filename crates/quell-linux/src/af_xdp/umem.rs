//! Memory that a process shares with the kernel: the umem, which holds frames, and its parts.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Size of a chunk in bytes. It holds a frame of an MTU of 1,500 bytes and the headroom that the kernel keeps
/// (`XDP_PACKET_HEADROOM`, 256 bytes).
pub const FRAME_BYTES: usize = 2_048;

/// The exclusive right to one chunk. A frame that is dropped stays unused until the socket is closed.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    /// Number of the umem, so that a frame of another socket is not mistaken for one of this socket.
    umem: u32,
    index: u32,
}

/// A memory mapping, unmapped when it is dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread. Access to its content is synchronised by its users.
unsafe impl Send for Mapping {}
// SAFETY: as above; `start` only copies the pointer.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(super) fn anonymous(bytes: usize) -> io::Result<Self> {
        Self::new(bytes, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
    }

    pub(super) fn of_file(file: BorrowedFd<'_>, bytes: usize, offset: u64) -> io::Result<Self> {
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        Self::new(bytes, libc::MAP_SHARED, file.as_raw_fd(), offset)
    }

    fn new(bytes: usize, flags: i32, fd: i32, offset: libc::off_t) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel selects the address, so that no existing mapping is replaced.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags | libc::MAP_POPULATE, fd, offset) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { start, bytes })
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Pointer to `count` values of `T` at `offset`, if they are inside the mapping and aligned.
    pub(super) fn at<T>(&self, offset: u64, count: u32) -> io::Result<NonNull<T>> {
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        let end = (count as usize).checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(offset));
        if end.is_none_or(|end| end > self.bytes) || !offset.is_multiple_of(align_of::<T>()) {
            return Err(io::Error::other("the kernel reports a ring outside its mapping"));
        }
        // SAFETY: the offset is inside the mapping, as checked above.
        Ok(unsafe { self.start.add(offset) }.cast())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was created with this start and length, and nothing refers to it any more.
        let _ = unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Chunks of [`FRAME_BYTES`].
#[derive(Debug)]
pub(super) struct Umem {
    memory: Mapping,
    number: u32,
    frames: u32,
}

impl Umem {
    /// Allocates a umem, and the right to each of its chunks.
    pub(super) fn new(frames: u32) -> io::Result<(Self, Vec<Frame>)> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let memory = Mapping::anonymous(frames as usize * FRAME_BYTES)?;
        let rights = (0..frames).map(|index| Frame { umem: number, index }).collect();
        Ok((Self { memory, number, frames }, rights))
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.memory.start()
    }

    pub(super) fn bytes(&self) -> usize {
        self.frames as usize * FRAME_BYTES
    }

    /// Address of the chunk in the umem, as in descriptors.
    pub(super) fn address(&self, frame: &Frame) -> u64 {
        assert_eq!(frame.umem, self.number, "a frame of another socket");
        u64::from(frame.index) * FRAME_BYTES as u64
    }

    /// The right that the kernel returns with this address, which can be inside the chunk.
    pub(super) fn frame_at(&self, address: u64) -> Option<Frame> {
        let index = u32::try_from(address / FRAME_BYTES as u64).ok().filter(|index| *index < self.frames)?;
        Some(Frame { umem: self.number, index })
    }

    pub(super) fn content_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        let start = self.chunk(frame);
        // SAFETY: the chunk is inside the memory. `&mut Frame` is the only access to it: the kernel has no right to a chunk
        // while its `Frame` exists.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), FRAME_BYTES) }
    }

    fn chunk(&self, frame: &Frame) -> NonNull<u8> {
        assert_eq!(frame.umem, self.number, "a frame of another socket");
        // SAFETY: a frame's index is below `frames`, so the offset is inside the memory.
        unsafe { self.memory.start().add(frame.index as usize * FRAME_BYTES) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_their_own_bytes_and_the_kernels_addresses_name_them() {
        let (umem, mut frames) = Umem::new(4).unwrap();
        for (value, frame) in (1..).zip(&mut frames) {
            umem.content_mut(frame).fill(value);
        }
        for (value, frame) in (1..).zip(&mut frames) {
            assert!(umem.content_mut(frame).iter().all(|byte| *byte == value));
            let inside = umem.address(frame) + 256;
            assert_eq!(umem.frame_at(inside).as_ref(), Some(&*frame));
        }
        assert_eq!(umem.frame_at(4 * FRAME_BYTES as u64), None);
    }

    #[test]
    #[should_panic(expected = "a frame of another socket")]
    fn a_frame_of_another_socket_is_refused() {
        let (_, mut frames) = Umem::new(1).unwrap();
        let (other, _) = Umem::new(1).unwrap();
        other.content_mut(&mut frames[0]);
    }

    #[test]
    fn a_ring_outside_its_mapping_is_refused() {
        let mapping = Mapping::anonymous(4_096).unwrap();
        assert!(mapping.at::<u64>(4_088, 1).is_ok());
        for (offset, count) in [(4_092, 1), (4_088, 2), (u64::MAX, 1), (1, 1)] {
            assert!(mapping.at::<u64>(offset, count).is_err(), "{offset} {count}");
        }
    }
}
