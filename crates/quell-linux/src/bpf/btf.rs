//! Reads the BTF of the running kernel, `/sys/kernel/btf/vmlinux` (`Documentation/bpf/btf.rst`): offsets of structure
//! members and values of enumerators. The content is untrusted. Invalid bytes cause an error, never a panic.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a lookup in BTF failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BtfError {
    /// The kernel is built without `CONFIG_DEBUG_INFO_BTF`.
    #[error("{path}: {source}; the kernel needs CONFIG_DEBUG_INFO_BTF")]
    Absent {
        /// Path of the BTF file.
        path: PathBuf,
        /// Error returned by the system call.
        source: io::Error,
    },
    /// The file could not be read.
    #[error("reading {path}: {source}")]
    Read {
        /// Path of the BTF file.
        path: PathBuf,
        /// Error returned by the system call.
        source: io::Error,
    },
    /// The bytes are not BTF in the byte order of this machine.
    #[error("byte {offset} of the kernel's BTF: expected {expected}")]
    Malformed {
        /// Offset of the invalid bytes from the start of the file.
        offset: usize,
        /// Description of valid content at this offset.
        expected: &'static str,
    },
    /// The running kernel has no type, member or enumerator of this name.
    #[error("this kernel's BTF has no {what}")]
    NotFound {
        /// Name that was looked up.
        what: String,
    },
}

/// Kinds of types (`enum` in `linux/btf.h`).
mod kind {
    pub(super) const INT: u32 = 1;
    pub(super) const ARRAY: u32 = 3;
    pub(super) const STRUCT: u32 = 4;
    pub(super) const UNION: u32 = 5;
    pub(super) const ENUM: u32 = 6;
    pub(super) const VOLATILE: u32 = 9;
    pub(super) const CONST: u32 = 10;
    pub(super) const RESTRICT: u32 = 11;
    pub(super) const FUNC_PROTO: u32 = 13;
    pub(super) const VAR: u32 = 14;
    pub(super) const DATASEC: u32 = 15;
    pub(super) const DECL_TAG: u32 = 17;
    pub(super) const TYPE_TAG: u32 = 18;
    pub(super) const ENUM64: u32 = 19;
}

const MAGIC: u16 = 0xEB9F;
const VERSION: u8 = 1;
/// Size of the fixed part of a type in bytes: name, info, and size or referenced type.
const TYPE_BYTES: usize = 12;
/// Maximum depth of nested anonymous structures. Real types nest a few levels; deeper nesting means that the BTF is
/// invalid.
const NESTING_MAX: u32 = 16;

/// The BTF types of a kernel.
#[derive(Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    /// Offset of each type in the file. The first entry has type id 1.
    types: Vec<usize>,
    strings: std::ops::Range<usize>,
}

/// Fixed part of a type.
#[derive(Clone, Copy)]
struct Type {
    offset: usize,
    name: u32,
    kind: u32,
    /// Number of members, enumerators or parameters that follow.
    length: u32,
    /// `kind_flag` of the type. For a structure: the upper 8 bits of a member's offset hold the width of a bit field.
    /// For an enum: its values are signed.
    flag: bool,
    /// Size in bytes or, for a reference, the id of the referenced type.
    size_or_type: u32,
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
        Some(self.length as usize * each)
    }
}

impl Btf {
    /// Reads the types of the running kernel from `kernel/btf/vmlinux` below `sys`, normally `/sys`.
    ///
    /// # Errors
    /// When the kernel has no BTF, or it is unreadable or malformed.
    pub fn of_kernel(sys: &Path) -> Result<Self, BtfError> {
        let path = sys.join("kernel/btf/vmlinux");
        match fs::read(&path) {
            Ok(bytes) => Self::parse(bytes),
            Err(source) if source.kind() == io::ErrorKind::NotFound => Err(BtfError::Absent { path, source }),
            Err(source) => Err(BtfError::Read { path, source }),
        }
    }

    /// Parses BTF in the byte order of this machine.
    ///
    /// # Errors
    /// When the header, a section or a type exceeds the bytes, or a kind is unknown.
    pub fn parse(bytes: Vec<u8>) -> Result<Self, BtfError> {
        if bytes.get(..2) != Some(&MAGIC.to_ne_bytes()) {
            return Err(malformed(0, "the magic number of BTF in this machine's byte order"));
        }
        if bytes.get(2) != Some(&VERSION) {
            return Err(malformed(2, "version 1"));
        }
        let mut btf = Self { bytes, types: Vec::new(), strings: 0..0 };
        let header = btf.u32(4)? as usize;
        let types = btf.section(header, 8)?;
        btf.strings = btf.section(header, 16)?;
        btf.index(types)?;
        Ok(btf)
    }

    /// Offset of a structure member in bytes. Members of anonymous structures and unions count as members of the
    /// enclosing structure.
    pub fn member_offset(&self, structure: &str, member: &str) -> Result<u32, BtfError> {
        let what = || BtfError::NotFound { what: format!("`{member}` in `struct {structure}`") };
        for ty in self.all() {
            let ty = ty?;
            if ty.kind != kind::STRUCT || !self.is_named(ty.name, structure) {
                continue;
            }
            let bits = self.member_bits(ty, member, &mut vec![ty.offset], NESTING_MAX)?.ok_or_else(what)?;
            if bits % 8 != 0 {
                return Err(what());
            }
            return Ok(bits / 8);
        }
        Err(what())
    }

    /// Value of an enumerator, searched in all enums.
    pub fn enumerator(&self, name: &str) -> Result<u32, BtfError> {
        for ty in self.all() {
            let ty = ty?;
            if ty.kind != kind::ENUM {
                continue;
            }
            for index in 0..ty.length as usize {
                let at = ty.offset + TYPE_BYTES + index * 8;
                if self.is_named(self.u32(at)?, name) {
                    return self.u32(at + 4);
                }
            }
        }
        Err(BtfError::NotFound { what: format!("enumerator `{name}`") })
    }

    fn section(&self, base: usize, field: usize) -> Result<std::ops::Range<usize>, BtfError> {
        let outside = || malformed(field, "a section within the file");
        let (offset, length) = (self.u32(field)? as usize, self.u32(field + 4)? as usize);
        let start = base.checked_add(offset).ok_or_else(outside)?;
        let end = start.checked_add(length).ok_or_else(outside)?;
        if end > self.bytes.len() {
            return Err(outside());
        }
        Ok(start..end)
    }

    fn index(&mut self, section: std::ops::Range<usize>) -> Result<(), BtfError> {
        let mut at = section.start;
        while at < section.end {
            let ty = self.type_at(at)?;
            let trailer = ty.trailer().ok_or_else(|| malformed(at + 4, "a known kind of type"))?;
            self.types.push(at);
            at += TYPE_BYTES + trailer;
        }
        if at > section.end {
            return Err(malformed(section.end, "the end of a type"));
        }
        Ok(())
    }

    fn all(&self) -> impl Iterator<Item = Result<Type, BtfError>> + '_ {
        self.types.iter().map(|&at| self.type_at(at))
    }

    fn type_at(&self, offset: usize) -> Result<Type, BtfError> {
        let info = self.u32(offset + 4)?;
        Ok(Type {
            offset,
            name: self.u32(offset)?,
            kind: info >> 24 & 0x1F,
            length: info & 0xFFFF,
            flag: info >> 31 == 1,
            size_or_type: self.u32(offset + 8)?,
        })
    }

    fn type_by_id(&self, id: u32) -> Result<Option<Type>, BtfError> {
        let index = (id as usize).checked_sub(1);
        let offset = index.and_then(|index| self.types.get(index));
        offset.map(|&offset| self.type_at(offset)).transpose()
    }

    /// Offset of a member in a structure or union, in bits. Each type is searched once, so a recursive type does not
    /// prolong the search.
    fn member_bits(
        &self,
        ty: Type,
        wanted: &str,
        searched: &mut Vec<usize>,
        nesting: u32,
    ) -> Result<Option<u32>, BtfError> {
        for index in 0..ty.length as usize {
            let at = ty.offset + TYPE_BYTES + index * 12;
            let (name, member_type, offset) = (self.u32(at)?, self.u32(at + 4)?, self.u32(at + 8)?);
            let (width, bits) = match ty.flag {
                true => (offset >> 24, offset & 0x00FF_FFFF),
                false => (0, offset),
            };
            if name != 0 {
                if width == 0 && self.is_named(name, wanted) {
                    return Ok(Some(bits));
                }
                continue;
            }
            let Some(inner) = self.anonymous_composite(member_type)? else { continue };
            if nesting == 0 || searched.contains(&inner.offset) {
                continue;
            }
            searched.push(inner.offset);
            if let Some(within) = self.member_bits(inner, wanted, searched, nesting - 1)? {
                return Ok(bits.checked_add(within));
            }
        }
        Ok(None)
    }

    /// Structure or union that is the type of an unnamed member, after skipping qualifiers.
    fn anonymous_composite(&self, mut id: u32) -> Result<Option<Type>, BtfError> {
        for _ in 0..NESTING_MAX {
            let Some(ty) = self.type_by_id(id)? else {
                return Ok(None);
            };
            match ty.kind {
                kind::STRUCT | kind::UNION => return Ok(Some(ty)),
                kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    id = ty.size_or_type;
                }
                _ => return Ok(None),
            }
        }
        Ok(None)
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
    fn a_member_of_an_anonymous_union_in_an_anonymous_structure_is_found() {
        let mut types = vec![0, info(kind::INT, 0), 4, 32];
        types.extend([0, info(kind::UNION, 1), 4, DEEP, 1, 0]);
        types.extend([0, info(kind::STRUCT, 1), 8, 0, 2, 32]);
        types.extend([OUTER, info(kind::STRUCT, 2), 16, A, 1, 0, 0, 3, 64]);
        let btf = Btf::parse(btf(&types, STRINGS)).unwrap();
        assert_eq!(btf.member_offset("outer", "a").unwrap(), 0);
        assert_eq!(btf.member_offset("outer", "deep").unwrap(), 12);
        assert!(matches!(btf.member_offset("outer", "b"), Err(BtfError::NotFound { .. })));
    }

    #[test]
    fn the_search_in_a_structure_that_contains_itself_ends() {
        let types = [OUTER, info(kind::STRUCT, 2), 16, 0, 1, 0, 0, 1, 0];
        let btf = Btf::parse(btf(&types, STRINGS)).unwrap();
        assert!(btf.member_offset("outer", "a").is_err());
    }

    #[test]
    fn a_structure_that_contains_itself_many_times_is_searched_once() {
        let mut types = vec![OUTER, info(kind::STRUCT, 60_000), 16];
        types.extend([0, 1, 0].repeat(60_000));
        let btf = Btf::parse(btf(&types, STRINGS)).unwrap();
        assert!(btf.member_offset("outer", "a").is_err());
    }

    #[test]
    fn a_bit_field_has_no_byte_offset() {
        let types = [OUTER, info(kind::STRUCT, 1) | 1 << 31, 16, A, 1, 3 << 24 | 8];
        let btf = Btf::parse(btf(&types, STRINGS)).unwrap();
        assert!(btf.member_offset("outer", "a").is_err());
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
        assert!(matches!(Btf::parse(btf(&types, STRINGS)), Err(BtfError::Malformed { .. })));
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
        assert_ne!(btf.member_offset("napi_struct", "napi_id").unwrap(), 0);
    }
}
