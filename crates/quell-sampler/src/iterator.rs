//! Reads BPF iterators: programs that the kernel runs once for each of its objects while their file is read.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use aya::programs::Iter;
use aya::programs::iter::IterLink;
use aya::{Btf, Ebpf, EbpfLoader};

use crate::sampler::{SamplerError, kernel_types};

/// The iterators of one compiled object.
pub(crate) struct Iterators {
    object: Ebpf,
    btf: Btf,
}

/// An iterator whose file is not yet created.
pub(crate) struct IteratorLink(IterLink);

impl IteratorLink {
    pub(crate) fn open(self) -> Result<File, SamplerError> {
        self.0.into_file().map_err(|error| SamplerError::new("opening an iterator", &error))
    }
}

impl Iterators {
    /// The kernel's BTF is read below `sys`, normally `/sys`.
    pub(crate) fn load(sys: &Path, object: &[u8]) -> Result<Self, SamplerError> {
        let (_, btf) = kernel_types(sys)?;
        let object = EbpfLoader::new().btf(Some(&btf)).load(object).map_err(|error| loading(&error))?;
        Ok(Self { object, btf })
    }

    /// Runs program `name` for all objects of type `objects`, and returns what it wrote.
    pub(crate) fn read(
        &mut self,
        name: &str,
        objects: &str,
        open: impl FnOnce(IteratorLink) -> Result<File, SamplerError>,
    ) -> Result<Vec<u8>, SamplerError> {
        let missing =
            || SamplerError::Refused { action: "reading the compiled object", said: format!("it has no {name}") };
        let program = self.object.program_mut(name).ok_or_else(missing)?;
        let program: &mut Iter = program.try_into().map_err(|error| loading(&error))?;
        let link = program.load(objects, &self.btf).and_then(|()| program.attach());
        let link = link.and_then(|link| program.take_link(link)).map_err(|error| loading(&error))?;
        let mut bytes = Vec::new();
        let read = open(IteratorLink(link))?.read_to_end(&mut bytes);
        read.map_err(|error| SamplerError::new("reading an iterator", &error))?;
        Ok(bytes)
    }
}

fn loading(error: &(dyn std::error::Error + 'static)) -> SamplerError {
    SamplerError::new("loading the iterators", error)
}
