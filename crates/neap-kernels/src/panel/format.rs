//! How a panel holds its weights, and reading them into registers.
//!
//! ```text
//!   f32, f16, bf16           [bias 16][k][16]                          the weight
//!   f16, bf16 with scales    [bias 16][scale 16][k][16]                weight * scale
//!   8-bit integers           [bias 16][scale 16][zero 16][k][16]       (weight - zero) * scale
//! ```
//! Bias, scales and zero points are `f32`, one for each lane. A weight becomes an `f32` by exact steps and at most one
//! rounded multiplication, so a layer has the bits that it would have if its panels held that `f32`.

use crate::error::{KernelError, check_len};
use crate::simd::{Isa, LANES, Simd};

/// How a panel holds its weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Format {
    #[default]
    F32,
    /// IEEE 754 binary16.
    F16,
    F16Scaled,
    Bf16,
    Bf16Scaled,
    /// Signed bytes with a scale and a zero point for each output channel.
    I8,
}

impl Format {
    pub const ALL: [Format; 6] = [
        Format::F32,
        Format::F16,
        Format::F16Scaled,
        Format::Bf16,
        Format::Bf16Scaled,
        Format::I8,
    ];

    /// Bytes before the first weight: bias, scales, zero points.
    #[must_use]
    pub const fn head_bytes(self) -> usize {
        let vectors = match self {
            Format::F32 | Format::F16 | Format::Bf16 => 1,
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
        };
        element * LANES
    }

    /// Bytes of a panel with `k` inner steps; `None` for more than there can be.
    #[must_use]
    pub fn panel_bytes(self, k: usize) -> Option<usize> {
        k.checked_mul(self.step_bytes())?
            .checked_add(self.head_bytes())
    }

    /// The instruction set whose kernels take this format.
    ///
    /// On a processor with AVX-512 formats other than `f32` are computed with AVX2.
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

    /// Refuses fewer than `panels` panels with `k` inner steps; `None` is a count that overflowed.
    pub(crate) fn check(&self, k: Option<usize>, panels: usize) -> Result<(), KernelError> {
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
    const FORMAT: Format;

    /// The weights of one k, at `at`, of the panel that begins at `head`.
    ///
    /// # Safety
    /// `at` is readable for `FORMAT.step_bytes()` bytes and `head` for `FORMAT.head_bytes()`.
    unsafe fn load<S: Simd>(s: S, at: *const u8, head: *const f32) -> S::V;
}

macro_rules! stored {
    ($name:ident, |$s:ident, $at:ident, $head:ident| $load:expr) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Stored for $name {
            const FORMAT: Format = Format::$name;

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
stored!(F16Scaled, |s, at, head| s
    .mul(s.load_f16(at), s.load(head.add(LANES))));
stored!(Bf16, |s, at, head| s.load_bf16(at));
stored!(Bf16Scaled, |s, at, head| s
    .mul(s.load_bf16(at), s.load(head.add(LANES))));
stored!(I8, |s, at, head| {
    let centred = s.sub(s.load_i8(at), s.load(head.add(2 * LANES)));
    s.mul(centred, s.load(head.add(LANES)))
});

/// Calls `$f::<W>` with the type `W` of a format: `by_format!(format, W => call::<W>())`.
macro_rules! by_format {
    ($format:expr, $w:ident => $call:expr) => {{
        use $crate::panel::format as stored;
        match $format {
            stored::Format::F32 => {
                type $w = stored::F32;
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
        }
    }};
}
pub(crate) use by_format;
