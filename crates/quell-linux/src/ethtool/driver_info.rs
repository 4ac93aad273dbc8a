//! Driver of an interface and bus address of its device, read with `ETHTOOL_GDRVINFO`. Devices without a bus (veth,
//! TAP) also have a driver, but sysfs does not show it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Ethtool;
use super::ioctl::put;
use crate::interface::Ifindex;
use crate::netlink::{Malformed, NetlinkError, RequestTarget};

pub(super) const ETHTOOL_GDRVINFO: u32 = 0x0000_0003;
/// Size of `struct ethtool_drvinfo` in bytes: command, five texts, reserved bytes and five counts.
pub(super) const DRVINFO_BYTES: usize = 4 + 5 * TEXT_BYTES + 12 + 5 * 4;
const TEXT_BYTES: usize = 32;

/// Driver information of an interface. A field is `None` if the driver reports an empty text.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub struct DriverInfo {
    /// Name of the driver, for example `virtio_net`.
    pub driver: Option<String>,
    /// Version of the driver, usually the kernel's version.
    pub version: Option<String>,
    pub firmware_version: Option<String>,
    /// Bus address of the device, for example `0000:00:03.0`.
    pub bus_info: Option<String>,
}

impl Ethtool {
    /// Reads the driver information of an interface. Errors: `Unsupported` if its device has no driver.
    pub fn driver_info(&mut self, index: Ifindex) -> Result<DriverInfo, NetlinkError> {
        let mut buffer = vec![0; DRVINFO_BYTES];
        put(&mut buffer, 0, &ETHTOOL_GDRVINFO.to_ne_bytes());
        self.ioctl("read the driver of", index, "ETHTOOL_GDRVINFO", &mut buffer)?;
        parse_driver_info(&buffer)
            .map_err(|malformed| NetlinkError::new("read the driver of", RequestTarget::Index(index), malformed.into()))
    }
}

pub(crate) fn parse_driver_info(bytes: &[u8]) -> Result<DriverInfo, Malformed> {
    let text = |number: usize| {
        let field = bytes.get(4 + number * TEXT_BYTES..4 + (number + 1) * TEXT_BYTES);
        let field = field.ok_or(Malformed("driver information is truncated"))?;
        let end = field.iter().position(|&byte| byte == 0).unwrap_or(TEXT_BYTES);
        Ok((end > 0).then(|| String::from_utf8_lossy(&field[..end]).into_owned()))
    };
    Ok(DriverInfo { driver: text(0)?, version: text(1)?, firmware_version: text(2)?, bus_info: text(3)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_text_is_absent() {
        let mut bytes = vec![0; DRVINFO_BYTES];
        put(&mut bytes, 4, b"virtio_net");
        put(&mut bytes, 4 + 3 * TEXT_BYTES, b"0000:00:03.0");
        let info = parse_driver_info(&bytes).unwrap();
        assert_eq!(info.driver.as_deref(), Some("virtio_net"));
        assert_eq!(info.bus_info.as_deref(), Some("0000:00:03.0"));
        assert_eq!((info.version, info.firmware_version), (None, None));
    }

    #[test]
    fn the_size_is_that_of_the_kernels_struct() {
        assert_eq!(DRVINFO_BYTES, 196);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let _ = parse_driver_info(&bytes);
        }
    }
}
