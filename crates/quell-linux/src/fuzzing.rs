//! Entry points to private decoders for fuzz targets. They exist in instrumented builds and in unit tests, which run
//! the stored corpus.

use crate::proc::{irq, sysctl};
use crate::sysfs::{cpu, net_class, queue_files};
use crate::{address, bit_mask, ethtool, link, netdev, netlink, sock_diag};

/// Decodes bytes as a netlink datagram, and as the payload of every reply that Quell decodes.
pub fn netlink(bytes: &[u8]) {
    netlink::statuses(bytes);
    let _ = netdev::decode_napi(bytes);
    let _ = netdev::decode_queue(bytes);
    let _ = netdev::decode_stats(bytes);
    let _ = link::decode_link(bytes);
    let _ = address::decode_address(bytes);
    let _ = ethtool::decode_features(bytes);
    let _ = ethtool::decode_channels(bytes);
    let _ = sock_diag::decode_socket(bytes);
    let _ = ethtool::decode_rings(bytes);
    let _ = ethtool::decode_rss(bytes);
    let coalescing = ethtool::decode_coalescing(bytes);
    let _ = coalescing.map(|device| ethtool::parse_words(bytes, &device));
}

/// Decodes bytes as replies of the ethtool ioctl.
pub fn ethtool_ioctl(bytes: &[u8]) {
    let _ = ethtool::parse_driver_info(bytes);
    let _ = ethtool::parse_rule(bytes, 0);
    let _ = ethtool::parse_locations(bytes);
}

/// Parses bytes as a mask. A valid mask must parse to the same numbers after formatting.
pub fn bit_mask(bytes: &[u8]) {
    if let Some(numbers) = bit_mask::parse(bytes) {
        assert_eq!(bit_mask::parse(bit_mask::format(numbers.clone()).as_bytes()), Some(numbers));
    }
}

/// Parses bytes as each of the one-line files of sysfs, /proc/irq and /proc/sys.
pub fn one_line_files(bytes: &[u8]) {
    let _ = cpu::parse_word(bytes);
    let _ = cpu::parse_cpu_list_or_null(bytes);
    let _ = net_class::parse_number::<u64>(bytes);
    let _ = net_class::parse_or_minus_one(bytes);
    let _ = sysctl::parse(bytes);
    if let Ok(text) = sysctl::parse_text(bytes) {
        assert!(!text.contains('\n'));
    }
    if let (Ok(queues), Ok(cpus)) = (queue_files::parse_mask(bytes), irq::parse_mask(bytes)) {
        assert!(cpus.iter().eq(queues));
    }
    if let Ok(list) = irq::parse_list(bytes) {
        assert_eq!(irq::parse_list(list.to_string().as_bytes()), Ok(list));
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    fn corpus(target: &str) -> Vec<Vec<u8>> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
        let files: Vec<Vec<u8>> =
            fs::read_dir(&directory).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
        assert!(!files.is_empty(), "no corpus files in {}", directory.display());
        files
    }

    #[test]
    fn the_stored_netlink_datagrams_do_not_panic() {
        corpus("netlink").iter().for_each(|bytes| super::netlink(bytes));
    }

    #[test]
    fn the_stored_replies_of_the_ethtool_ioctl_do_not_panic() {
        corpus("ethtool_ioctl").iter().for_each(|bytes| super::ethtool_ioctl(bytes));
    }

    #[test]
    fn the_stored_masks_are_refused_or_round_trip() {
        corpus("bit_mask").iter().for_each(|bytes| super::bit_mask(bytes));
    }

    #[test]
    fn the_stored_one_line_files_do_not_panic() {
        corpus("one_line_files").iter().for_each(|bytes| super::one_line_files(bytes));
    }
}
