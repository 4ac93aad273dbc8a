//! Reads the BTF of the running kernel, `/sys/kernel/btf/vmlinux` (`Documentation/bpf/btf.rst`): whether a structure
//! has a member, and values of enumerators. The content is untrusted. Invalid bytes cause an error, never a panic.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a lookup in BTF failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BtfError {
    /// The kernel is built without `CONFIG_DEBUG_INFO_BTF`.
    #[error("{path}: {source}; the kernel needs CONFIG_DEBUG_INFO_BTF")]
    Absent { path: PathBuf, source: io::Error },
    #[error("reading {path}: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("byte {offset} of the kernel's BTF: expected {expected}")]
    Malformed { offset: usize, expected: &'static str },
    #[error("this kernel's BTF has no enumerator `{name}`")]
    NotFound { name: String },
}

/// Kinds of types (`enum` in `linux/btf.h`).
mod kind {
    pub(super) const INT: u32 = 1;
    pub(super) const ARRAY: u32 = 3;
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const ENUM: u32 = 6;
    pub(super) const FUNC_PROTO: u32 = 13;
    pub(super) const VAR: u32 = 14;
    pub(super) const DATASEC: u32 = 15;
    pub(super) const DECL_TAG: u32 = 17;
    pub(super) const ENUM64: u32 = 19;
}

const MAGIC: u16 = 0xEB9F;
const VERSION: u8 = 1;
/// Size of the fixed part of a type in bytes: name, info, and size or referenced type.
const TYPE_BYTES: usize = 12;

#[derive(Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    types: Range<usize>,
    strings: Range<usize>,
}

/// A type, and the offset of what follows its fixed part: members, enumerators or parameters.
#[derive(Clone, Copy)]
struct Type {
    name: u32,
    kind: u32,
    /// Number of members, enumerators or parameters.
    length: usize,
    parts: usize,
}

impl Type {
    /// Number of bytes that follow the fixed part. `None` if the kind is unknown.
    fn trailer(self) -> Option<usize> {
        let each = match self.kind {
            kind::INT | kind::VAR | kind::DECL_TAG => return Some(4),
            kind::ARRAY => return Some(12),
            kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12,
            kind::ENUM | kind::FUNC_PROTO => 8,
            2..=kind::ENUM64 => 0,
            _ => return None,
        };
        Some(self.length * each)
    }
}

impl Btf {
    /// Reads the types of the running kernel from `kernel/btf/vmlinux` below `sys`, normally `/sys`.
    pub fn of_kernel(sys: &Path) -> Result<Self, BtfError> {
        let path = sys.join("kernel/btf/vmlinux");
        match fs::read(&path) {
            Ok(bytes) => Self::parse(bytes),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Err(BtfError::Absent { path, source }),
            Err(source) => Err(BtfError::Read { path, source }),
        }
    }

    /// Takes BTF in the byte order of this machine. Types are examined by the lookups.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, BtfError> {
        if bytes.get(..2) != Some(&MAGIC.to_ne_bytes()) {
            return Err(malformed(0, "the magic number of BTF in this machine's byte order"));
        }
        if bytes.get(2) != Some(&VERSION) {
            return Err(malformed(2, "version 1"));
        }
        let mut btf = Self { bytes, types: 0..0, strings: 0..0 };
        let header = btf.u32(4)? as usize;
        btf.types = btf.section(header, 8)?;
        btf.strings = btf.section(header, 16)?;
        Ok(btf)
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether the first structure of this name has this member. Members of anonymous structures in it do not count.
    pub fn has_member(&self, structure: &str, member: &str) -> Result<bool, BtfError> {
        for ty in self.all() {
            let ty = ty?;
            if ty.kind != kind::STRUCT || !self.is_named(ty.name, structure) {
                continue;
            }
            for index in 0..ty.length {
                if self.is_named(self.u32(ty.parts + index * 12)?, member) {
                    return Ok(true);
                }
            }
            return Ok(false);
        }
        Ok(false)
    }

    /// Value of an enumerator, searched in all enums.
    pub fn enumerator(&self, name: &str) -> Result<u32, BtfError> {
        for ty in self.all() {
            let ty = ty?;
            if ty.kind != kind::ENUM {
                continue;
            }
            for index in 0..ty.length {
                let at = ty.parts + index * 8;
                if self.is_named(self.u32(at)?, name) {
                    return self.u32(at + 4);
                }
            }
        }
        Err(BtfError::NotFound { name: name.to_owned() })
    }

    fn section(&self, base: usize, field: usize) -> Result<Range<usize>, BtfError> {
        let outside = || malformed(field, "a section within the file");
        let (offset, length) = (self.u32(field)? as usize, self.u32(field + 4)? as usize);
        let start = base.checked_add(offset).ok_or_else(outside)?;
        let end = start.checked_add(length).ok_or_else(outside)?;
        if end > self.bytes.len() {
            return Err(outside());
        }
        Ok(start..end)
    }

    /// All types. An error is the last item.
    fn all(&self) -> impl Iterator<Item = Result<Type, BtfError>> + '_ {
        let mut at = self.types.start;
        std::iter::from_fn(move || {
            if at >= self.types.end {
                return None;
            }
            let read = self.type_at(at);
            at = read.as_ref().map_or(self.types.end, |&(_, next)| next);
            Some(read.map(|(ty, _)| ty))
        })
    }

    /// The type at an offset, and the offset of the next one.
    fn type_at(&self, offset: usize) -> Result<(Type, usize), BtfError> {
        let (name, info) = (self.u32(offset)?, self.u32(offset + 4)?);
        let parts = offset + TYPE_BYTES;
        let ty = Type { name, kind: info >> 24 & 0x1F, length: (info & 0xFFFF) as usize, parts };
        let trailer = ty.trailer().ok_or_else(|| malformed(offset + 4, "a known kind of type"))?;
        match parts + trailer {
            next if next <= self.types.end => Ok((ty, next)),
            _ => Err(malformed(self.types.end, "the end of a type")),
        }
    }

    fn is_named(&self, name: u32, wanted: &str) -> bool {
        let strings = &self.bytes[self.strings.clone()];
        let Some(rest) = strings.get(name as usize..) else {
            return false;
        };
        rest.strip_prefix(wanted.as_bytes()).is_some_and(|after| after.first() == Some(&0))
    }

    fn u32(&self, offset: usize) -> Result<u32, BtfError> {
        let four = offset.checked_add(4).and_then(|end| self.bytes.get(offset..end));
        match four.and_then(|four| four.try_into().ok()) {
            Some(four) => Ok(u32::from_ne_bytes(four)),
            None => Err(malformed(offset, "four more bytes")),
        }
    }
}

fn malformed(offset: usize, expected: &'static str) -> BtfError {
    BtfError::Malformed { offset, expected }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_test_support::{Lacks, skip};

    /// Creates BTF with this type section and these strings.
    fn btf(types: &[u32], strings: &str) -> Vec<u8> {
        let types: Vec<u8> = types.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut bytes = Vec::from(MAGIC.to_ne_bytes());
        bytes.extend([VERSION, 0]);
        let (length, strings_length) = (types.len() as u32, strings.len() as u32);
        for word in [24, 0, length, length, strings_length] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(types);
        bytes.extend(strings.as_bytes());
        bytes
    }

    fn info(kind: u32, length: u32) -> u32 {
        kind << 24 | length
    }

    const STRINGS: &str = "\0outer\0a\0deep\0VALUE\0";
    const OUTER: u32 = 1;
    const A: u32 = 7;
    const DEEP: u32 = 9;
    const VALUE: u32 = 14;

    #[test]
    fn a_structure_has_the_members_that_it_names() {
        let mut types = vec![0, info(kind::INT, 0), 4, 32];
        types.extend([0, info(kind::UNION, 1), 4, DEEP, 1, 0]);
        types.extend([OUTER, info(kind::STRUCT, 2), 16, 0, 2, 0, A, 1, 64]);
        let btf = Btf::parse(btf(&types, STRINGS)).unwrap();
        let has = |structure, member| btf.has_member(structure, member).unwrap();
        assert!(has("outer", "a"));
        assert!(!has("outer", "deep") && !has("outer", "oute") && !has("inner", "a"));
    }

    #[test]
    fn an_enumerator_has_its_value() {
        let types = [0, info(kind::ENUM, 1), 4, VALUE, 6];
        let btf = Btf::parse(btf(&types, STRINGS)).unwrap();
        assert_eq!(btf.enumerator("VALUE").unwrap(), 6);
        assert!(btf.enumerator("VALU").is_err());
    }

    #[test]
    fn a_type_that_exceeds_its_section_is_an_error() {
        let types = [OUTER, info(kind::STRUCT, 9), 16];
        let btf = Btf::parse(btf(&types, STRINGS)).unwrap();
        assert!(matches!(btf.has_member("outer", "a"), Err(BtfError::Malformed { .. })));
        assert!(matches!(btf.enumerator("VALUE"), Err(BtfError::Malformed { .. })));
    }

    #[test]
    fn the_running_kernel_has_what_the_sampler_looks_up() {
        let btf = match Btf::of_kernel(Path::new("/sys")) {
            Err(error @ BtfError::Absent { .. }) => {
                skip(Lacks::KernelFeature, &error);
                return;
            }
            btf => btf.unwrap(),
        };
        assert_ne!(btf.enumerator("NAPI_STATE_IN_BUSY_POLL").unwrap(), 0);
        assert!(btf.has_member("napi_struct", "napi_id").unwrap());
    }
}
