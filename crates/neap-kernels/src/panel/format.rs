//! How a panel holds its weights, and reading them into registers.
//!
//! ```text
//!   f32, f16, bf16           [bias 16][k][16]                          the weight
//!   coded                    [bias 16][table][others][k][56 bytes]     the weight, an f32 (see `simd::coded`)
//!   f16, bf16 with scales    [bias 16][scale 16][k][16]                weight * scale
//!   8-bit integers           [bias 16][scale 16][zero 16][k][16]       (weight - zero) * scale
//!   blocks                   [bias 16] and for each block [scale 16][zero 16][k of the block][16]
//! ```
//! Bias, scales and zero points are `f32`, one for each lane. A weight becomes an `f32` by exact steps and at most one
//! rounded multiplication, so a layer has the bits that it would have if its panels held that `f32`.

use crate::error::{KernelError, check_len};
use crate::simd::{Isa, LANES, Simd, coded};

/// How a panel holds its weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Format {
    #[default]
    F32,
    /// `f32` in 28 bits, with room for 16 times `others` weights of rare exponents in each panel.
    Coded {
        others: u16,
    },
    /// IEEE 754 binary16.
    F16,
    F16Scaled,
    Bf16,
    Bf16Scaled,
    /// Signed bytes with a scale and a zero point for each output channel.
    I8,
    /// Integers with a scale and a zero point for each output channel and each run of k. Only [`crate::linear`] takes
    /// them.
    Blocks(BlockFormat),
}

/// Blocks of integers along k: `len` steps of k share a scale and a zero point, the last block may be shorter.
///
/// Scales are `f32` or half floats, zero points signed bytes. Four-bit integers are 0 to 15, two in a byte: of the 16
/// lanes of a step, lane `i` is in the low half of byte `i`, lane `i + 8` in its high half.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockFormat {
    pub bits: Bits,
    pub has_half_scales: bool,
    /// Steps of k in a block.
    pub len: usize,
}

/// Bits of an integer in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bits {
    Four,
    Eight,
}

impl BlockFormat {
    /// Bytes of a block before its integers: scales and zero points.
    #[must_use]
    pub const fn head_bytes(self) -> usize {
        let scale_bytes = if self.has_half_scales { 2 } else { 4 };
        (scale_bytes + 1) * LANES
    }

    /// Bytes of one k: 16 integers.
    #[must_use]
    pub const fn step_bytes(self) -> usize {
        match self.bits {
            Bits::Four => LANES / 2,
            Bits::Eight => LANES,
        }
    }
}

impl Format {
    /// Those that all layers take.
    pub const ALL: [Format; 7] = [
        Format::F32,
        Format::Coded { others: 2 },
        Format::F16,
        Format::F16Scaled,
        Format::Bf16,
        Format::Bf16Scaled,
        Format::I8,
    ];

    /// Bytes before the first weight, or the first block: bias, scales, zero points.
    #[must_use]
    pub const fn head_bytes(self) -> usize {
        let vectors = match self {
            Format::F32 | Format::F16 | Format::Bf16 | Format::Blocks(_) => 1,
            Format::Coded { others } => 2 + others as usize,
            Format::F16Scaled | Format::Bf16Scaled => 2,
            Format::I8 => 3,
        };
        vectors * LANES * size_of::<f32>()
    }

    /// Bytes of one k: 16 weights.
    #[must_use]
    pub const fn step_bytes(self) -> usize {
        let element = match self {
            Format::F32 => 4,
            Format::F16 | Format::F16Scaled | Format::Bf16 | Format::Bf16Scaled => 2,
            Format::I8 => 1,
            Format::Coded { .. } => return coded::STEP_BYTES,
            Format::Blocks(blocks) => return blocks.step_bytes(),
        };
        element * LANES
    }

    /// Bytes of what stands before the steps of each run of k that is one block.
    pub(crate) const fn run_head_bytes(self) -> usize {
        match self {
            Format::Blocks(blocks) => blocks.head_bytes(),
            _ => 0,
        }
    }

    /// Bytes of a panel with `k` inner steps; `None` for more than there can be.
    #[must_use]
    pub fn panel_bytes(self, k: usize) -> Option<usize> {
        let blocks = match self {
            Format::Blocks(blocks) => k.div_ceil(blocks.len.max(1)),
            _ => 0,
        };
        k.checked_mul(self.step_bytes())?
            .checked_add(blocks.checked_mul(self.run_head_bytes())?)?
            .checked_add(self.head_bytes())
    }

    /// The instruction set whose kernels take this format.
    ///
    /// On a processor with AVX-512 formats other than `f32` are computed with AVX2 where one row uses the weights. More
    /// rows have them widened first, and are computed as `f32` are. One row of blocks has kernels of its own.
    pub(crate) fn isa(self, isa: Isa) -> Isa {
        match self {
            Format::F32 => isa,
            _ => isa.of_narrow_weights(),
        }
    }
}

/// Panels of a layer, contiguous, in some format.
#[derive(Debug, Clone, Copy)]
pub struct Panels<'a> {
    format: Format,
    bytes: &'a [u8],
}

impl<'a> Panels<'a> {
    /// # Errors
    /// Bytes that do not begin at a multiple of four.
    pub fn new(format: Format, bytes: &'a [u8]) -> Result<Self, KernelError> {
        if !bytes.as_ptr().addr().is_multiple_of(align_of::<f32>()) {
            return Err(KernelError::Invalid("weights are not aligned"));
        }
        Ok(Panels { format, bytes })
    }

    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.bytes.as_ptr()
    }

    /// The bytes as floats, whatever they are.
    pub(crate) fn floats(&self) -> &'a [f32] {
        let bytes = self.bytes;
        // SAFETY: the bytes are aligned for floats, and any bits are a float.
        unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<f32>()) }
    }

    /// Refuses blocks, and fewer than `panels` panels with `k` inner steps; `None` is a count that overflowed.
    pub(crate) fn check(&self, k: Option<usize>, panels: usize) -> Result<(), KernelError> {
        if matches!(self.format, Format::Blocks(_)) {
            return Err(KernelError::Unsupported("weights in blocks"));
        }
        self.check_any(k, panels)
    }

    /// As [`Panels::check`], for a layer that takes blocks too.
    pub(crate) fn check_any(&self, k: Option<usize>, panels: usize) -> Result<(), KernelError> {
        if let Format::Blocks(BlockFormat { len: 0, .. }) = self.format {
            return Err(KernelError::Invalid("blocks of no weights"));
        }
        let each = k.and_then(|k| self.format.panel_bytes(k));
        let needed = each.and_then(|bytes| bytes.checked_mul(panels));
        check_len("weights", self.bytes.len(), needed)
    }
}

impl<'a> From<&'a [f32]> for Panels<'a> {
    fn from(panels: &'a [f32]) -> Self {
        // SAFETY: floats are bytes, four each.
        let bytes = unsafe {
            std::slice::from_raw_parts(panels.as_ptr().cast::<u8>(), size_of_val(panels))
        };
        Panels {
            format: Format::F32,
            bytes,
        }
    }
}

impl<'a> From<&'a Vec<f32>> for Panels<'a> {
    fn from(panels: &'a Vec<f32>) -> Self {
        panels.as_slice().into()
    }
}

/// A format as kernels are compiled for it.
pub(crate) trait Stored: Copy + 'static {
    /// Bytes of one k.
    const STEP_BYTES: usize;
    /// Bytes before the steps of each run: 0 where a panel has one head for all.
    const RUN_HEAD_BYTES: usize;

    /// The weights of one k, at `at`, of the panel or, where runs have heads, of the run that begins at `head`.
    ///
    /// # Safety
    /// `at` is readable for `STEP_BYTES` and `head` for the head of the panel or run.
    unsafe fn load<S: Simd>(s: S, at: *const u8, head: *const f32) -> S::V;
}

macro_rules! stored {
    ($name:ident, |$s:ident, $at:ident, $head:ident| $load:expr) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Stored for $name {
            const STEP_BYTES: usize = Format::$name.step_bytes();
            const RUN_HEAD_BYTES: usize = 0;

            #[inline(always)]
            unsafe fn load<S: Simd>($s: S, $at: *const u8, $head: *const f32) -> S::V {
                let _ = $head;
                // SAFETY: the caller's promise.
                unsafe { $load }
            }
        }
    };
}
stored!(F32, |s, at, head| s.load(at.cast()));
stored!(F16, |s, at, head| s.load_f16(at));

#[derive(Clone, Copy)]
pub(crate) struct Coded;

impl Stored for Coded {
    const STEP_BYTES: usize = coded::STEP_BYTES;
    const RUN_HEAD_BYTES: usize = 0;

    #[inline(always)]
    unsafe fn load<S: Simd>(s: S, at: *const u8, head: *const f32) -> S::V {
        // SAFETY: the caller's promise; `at` stands in the panel of that head.
        unsafe { s.load_coded(at, head) }
    }
}

stored!(F16Scaled, |s, at, head| s
    .mul(s.load_f16(at), s.load(head.add(LANES))));
stored!(Bf16, |s, at, head| s.load_bf16(at));
stored!(Bf16Scaled, |s, at, head| s
    .mul(s.load_bf16(at), s.load(head.add(LANES))));
stored!(I8, |s, at, head| {
    let centred = s.sub(s.load_i8(at), s.load(head.add(2 * LANES)));
    s.mul(centred, s.load(head.add(LANES)))
});

macro_rules! stored_blocks {
    ($name:ident, $bits:ident, half: $half:literal, $less:ident, $scale:ident) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl $name {
            const BLOCKS: BlockFormat = BlockFormat {
                bits: Bits::$bits,
                has_half_scales: $half,
                len: 0,
            };
        }

        impl Stored for $name {
            const STEP_BYTES: usize = Self::BLOCKS.step_bytes();
            const RUN_HEAD_BYTES: usize = Self::BLOCKS.head_bytes();

            #[inline(always)]
            unsafe fn load<S: Simd>(s: S, at: *const u8, head: *const f32) -> S::V {
                // SAFETY: the caller's promise; zero points stand behind the scales.
                unsafe {
                    let zero = head.cast::<u8>().add(Self::RUN_HEAD_BYTES - LANES);
                    let centred = $less(s, at, s.load_i8(zero));
                    s.mul(centred, s.$scale(head.cast()))
                }
            }
        }
    };
}
stored_blocks!(Four, Four, half: false, four_less, load);
stored_blocks!(FourHalf, Four, half: true, four_less, load_f16);
stored_blocks!(Eight, Eight, half: false, eight_less, load);
stored_blocks!(EightHalf, Eight, half: true, eight_less, load_f16);

/// # Safety
/// `at` is readable for 8 bytes.
#[inline(always)]
unsafe fn four_less<S: Simd>(s: S, at: *const u8, zero: S::V) -> S::V {
    // SAFETY: the caller's promise.
    unsafe { s.load_u4_less(at, zero) }
}

/// # Safety
/// `at` is readable for 16 bytes.
#[inline(always)]
unsafe fn eight_less<S: Simd>(s: S, at: *const u8, zero: S::V) -> S::V {
    // SAFETY: the caller's promise.
    unsafe { s.sub(s.load_i8(at), zero) }
}

/// Calls `$f::<W>` with the type `W` of a format: `by_format!(format, W => call::<W>())`.
macro_rules! by_format {
    ($format:expr, $w:ident => $call:expr) => {{
        use $crate::panel::format as stored;
        match $format {
            stored::Format::F32 => {
                type $w = stored::F32;
                $call
            }
            stored::Format::Coded { .. } => {
                type $w = stored::Coded;
                $call
            }
            stored::Format::F16 => {
                type $w = stored::F16;
                $call
            }
            stored::Format::F16Scaled => {
                type $w = stored::F16Scaled;
                $call
            }
            stored::Format::Bf16 => {
                type $w = stored::Bf16;
                $call
            }
            stored::Format::Bf16Scaled => {
                type $w = stored::Bf16Scaled;
                $call
            }
            stored::Format::I8 => {
                type $w = stored::I8;
                $call
            }
            // `Panels::check` refused them.
            stored::Format::Blocks(_) => unreachable!("blocks in a layer that takes none"),
        }
    }};
}
pub(crate) use by_format;

/// As [`by_format`], of a format of blocks.
macro_rules! by_block_format {
    ($blocks:expr, $w:ident => $call:expr) => {{
        use $crate::panel::format as stored;
        match ($blocks.bits, $blocks.has_half_scales) {
            (stored::Bits::Four, false) => {
                type $w = stored::Four;
                $call
            }
            (stored::Bits::Four, true) => {
                type $w = stored::FourHalf;
                $call
            }
            (stored::Bits::Eight, false) => {
                type $w = stored::Eight;
                $call
            }
            (stored::Bits::Eight, true) => {
                type $w = stored::EightHalf;
                $call
            }
        }
    }};
}
pub(crate) use by_block_format;

/// As [`by_format`], with blocks.
macro_rules! by_any_format {
    ($format:expr, $w:ident => $call:expr) => {{
        use $crate::panel::format as stored;
        match $format {
            stored::Format::Blocks(blocks) => stored::by_block_format!(blocks, $w => $call),
            format => stored::by_format!(format, $w => $call),
        }
    }};
}
pub(crate) use by_any_format;
