//! Interrupt coalescing of single queues (`ETHTOOL_PERQUEUE`), which netlink does not support. `coalescing` handles all
//! queues of an interface.

use super::Ethtool;
use super::coalescing::{CoalesceParameter, Coalescing};
use super::ioctl::{put, u32_at};
use crate::interface::Ifindex;
use crate::netlink::{Cause, Malformed, NetlinkError, RequestTarget};

pub(super) const ETHTOOL_GCOALESCE: u32 = 0x0000_000e;
pub(super) const ETHTOOL_SCOALESCE: u32 = 0x0000_000f;
pub(super) const ETHTOOL_PERQUEUE: u32 = 0x0000_004b;
/// `MAX_NUM_QUEUE` of `include/uapi/linux/ethtool.h`.
const QUEUES_MAX: u32 = 4096;
/// Size of `struct ethtool_per_queue_op` in bytes without its data: two commands and one bit per queue.
pub(super) const HEADER_BYTES: usize = 8 + QUEUES_MAX as usize / 8;
/// Size of `struct ethtool_coalesce` in bytes: the command and 22 parameters.
pub(super) const COALESCE_BYTES: usize = 4 + 22 * 4;
/// First parameter in `struct ethtool_coalesce`. The struct contains the parameters with netlink numbers 2 to 23, in
/// the same order.
const FIRST_PARAMETER: u16 = CoalesceParameter::RxUsecs as u16;
const LAST_PARAMETER: u16 = CoalesceParameter::RateSampleInterval as u16;

impl Ethtool {
    /// Reads the coalescing parameters of a queue, for both directions.
    ///
    /// The kernel returns zero for parameters that the driver lacks. `device` contains the parameters of the interface
    /// ([`Ethtool::coalescing`]) and selects the valid ones. The CQE modes exist only per interface. Errors:
    /// `Unsupported` if the driver has coalescing only per interface, `Invalid` if the queue does not exist.
    pub fn queue_coalescing(
        &mut self,
        index: Ifindex,
        queue: u32,
        device: &Coalescing,
    ) -> Result<Coalescing, NetlinkError> {
        const ACTION: &str = "read the coalescing of a queue of";
        let words = self.queue_words(ACTION, index, queue)?;
        parse_words(&words, device)
            .map_err(|malformed| NetlinkError::new(ACTION, RequestTarget::Index(index), malformed.into()))
    }

    /// Sets the parameters in `changes` on a queue and leaves the others unchanged. Not tested on hardware. Errors: the
    /// errors of [`Ethtool::queue_coalescing`]. `Invalid` for a parameter that exists only per interface, or a value
    /// that the driver rejects. `Denied` without `CAP_NET_ADMIN`.
    pub fn set_queue_coalescing(
        &mut self,
        index: Ifindex,
        queue: u32,
        changes: &Coalescing,
    ) -> Result<(), NetlinkError> {
        const ACTION: &str = "set the coalescing of a queue of";
        let refused = |cause| NetlinkError::new(ACTION, RequestTarget::Index(index), cause);
        let mut words = self.queue_words(ACTION, index, queue)?;
        put(&mut words, 0, &ETHTOOL_SCOALESCE.to_ne_bytes());
        change_words(&mut words, changes).map_err(refused)?;
        let mut buffer = request(ETHTOOL_SCOALESCE, queue).ok_or_else(|| no_such_queue(ACTION, index))?;
        put(&mut buffer, HEADER_BYTES, &words);
        self.ioctl(ACTION, index, "ETHTOOL_PERQUEUE", &mut buffer)
    }

    fn queue_words(&mut self, action: &'static str, index: Ifindex, queue: u32) -> Result<Vec<u8>, NetlinkError> {
        let mut buffer = request(ETHTOOL_GCOALESCE, queue).ok_or_else(|| no_such_queue(action, index))?;
        self.ioctl(action, index, "ETHTOOL_PERQUEUE", &mut buffer)?;
        Ok(buffer.split_off(HEADER_BYTES))
    }
}

fn no_such_queue(action: &'static str, index: Ifindex) -> NetlinkError {
    NetlinkError::new(action, RequestTarget::Index(index), Cause::Inexpressible("the highest queue number is 4095"))
}

/// Creates a request for one queue, with space for its parameters. Returns `None` if the queue number is too large.
fn request(sub_command: u32, queue: u32) -> Option<Vec<u8>> {
    if queue >= QUEUES_MAX {
        return None;
    }
    let mut buffer = vec![0; HEADER_BYTES + COALESCE_BYTES];
    put(&mut buffer, 0, &ETHTOOL_PERQUEUE.to_ne_bytes());
    put(&mut buffer, 4, &sub_command.to_ne_bytes());
    let mask_word = 8 + (queue / 32) as usize * 4;
    put(&mut buffer, mask_word, &(1_u32 << (queue % 32)).to_ne_bytes());
    Some(buffer)
}

/// Offset of a parameter in `struct ethtool_coalesce`. Returns `None` for a parameter that exists only per interface.
fn offset(parameter: CoalesceParameter) -> Option<usize> {
    let number = parameter.attribute();
    (FIRST_PARAMETER..=LAST_PARAMETER).contains(&number).then(|| usize::from(number - FIRST_PARAMETER + 1) * 4)
}

pub(crate) fn parse_words(words: &[u8], device: &Coalescing) -> Result<Coalescing, Malformed> {
    let value = |parameter| Some((parameter, offset(parameter)?));
    device
        .iter()
        .filter_map(|(parameter, _)| value(parameter))
        .map(|(parameter, offset)| {
            let value = u32_at(words, offset).ok_or(Malformed("coalescing of a queue is truncated"))?;
            Ok((parameter, value))
        })
        .collect()
}

fn change_words(words: &mut [u8], changes: &Coalescing) -> Result<(), Cause> {
    for (parameter, value) in changes.iter() {
        let offset =
            offset(parameter).ok_or(Cause::Inexpressible("CQE modes and aggregation can be set per interface only"))?;
        put(words, offset, &value.to_ne_bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn everything(value: u32) -> Coalescing {
        CoalesceParameter::ALL.iter().map(|parameter| (*parameter, value)).collect()
    }

    #[test]
    fn a_request_selects_its_queue_with_one_bit() {
        let buffer = request(ETHTOOL_GCOALESCE, 33).unwrap();
        assert_eq!(buffer.len(), 520 + 92);
        assert_eq!(u32_at(&buffer, 8), Some(0));
        assert_eq!(u32_at(&buffer, 12), Some(2));
        assert_eq!(request(ETHTOOL_GCOALESCE, 4096), None);
    }

    #[test]
    fn parameters_are_in_the_order_of_the_kernels_struct() {
        let words: Vec<u8> = (0..23_u32).flat_map(u32::to_ne_bytes).collect();
        let read = parse_words(&words, &everything(0)).unwrap();
        assert_eq!(read.get(CoalesceParameter::RxUsecs), Some(1));
        assert_eq!(read.get(CoalesceParameter::UseAdaptiveRx), Some(10));
        assert_eq!(read.get(CoalesceParameter::RateSampleInterval), Some(22));
        assert_eq!(read.get(CoalesceParameter::UseCqeModeRx), None);
    }

    #[test]
    fn a_parameter_that_the_interface_lacks_is_absent_on_its_queues() {
        let words = vec![0; COALESCE_BYTES];
        let device = [(CoalesceParameter::RxUsecs, 3)].into_iter().collect();
        let read = parse_words(&words, &device).unwrap();
        assert_eq!(read.iter().collect::<Vec<_>>(), [(CoalesceParameter::RxUsecs, 0)]);
    }

    #[test]
    fn a_parameter_that_exists_only_per_interface_cannot_be_set_on_a_queue() {
        let mut words = vec![0; COALESCE_BYTES];
        let change = [(CoalesceParameter::UseCqeModeRx, 1)].into_iter().collect();
        assert!(change_words(&mut words, &change).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = parse_words(&bytes, &everything(1));
        }
    }
}
