//! Kernels by name, how a plan names its choice of one, and what each costs.
//!
//! ```text
//!   kernels(op, …) ──► [Direct, Winograd(F2), …]     facts for a planner
//!   choose one, and whether its weights are stored as packed (raw) or prepared once
//!   prepare_panels(op, kernel, raw, prepared, …)      for weights that stay in memory
//!   execute_with(op, Choice { kernel, weights }, …)   the form of the weights does not change a bit
//! ```
//! [`crate::execute`] is [`crate::execute_with`] the default choice: direct, weights as packed.

use neap_plan::KernelId;
use std::fmt;
use thiserror::Error;

pub use neap_kernels::winograd::{Tile, WeightForm};

/// How an operator is computed. Kernels of one operator differ in rounding only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Kernel {
    #[default]
    Direct,
    /// As [`Kernel::Direct`], by the processor, though a device may be able to compute the step.
    OnProcessor,
    /// 3x3 convolutions with fewer multiplications.
    Winograd(Tile),
    /// The same by F(4×4, 3×3) in a workspace in which weights are transformed less often as they arrive.
    WideWinograd,
    /// The same by a device, in scratch of the plan's; the processor does not compute it.
    DeviceWinograd,
    /// A layer that the model has in bfloat16, by instructions that multiply pairs of it and add up floats. Its input is rounded in
    /// scratch first.
    Pairs,
    /// A chain in row bands whose 3x3 convolutions are computed by F(4×4, 3×3) where that pays, in bands of so
    /// many rows of its last layer, whatever the operator says.
    WinogradBands { rows: u8 },
}

/// What [`crate::execute_with`] is told: the kernel, and the form in which the slice's weights are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Choice {
    pub kernel: Kernel,
    pub weights: WeightForm,
}

/// A kernel of a device that computes a step sooner than its direct one, in scratch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScratchKernel {
    pub choice: Choice,
    pub workspace_bytes: u64,
    /// What the step takes by it, as far as the device tells; else 0.
    pub ns: u64,
}

impl Kernel {
    /// The tiles of a layer that a Winograd kernel of the processor computes.
    #[must_use]
    pub fn tile(self) -> Option<Tile> {
        match self {
            Kernel::Winograd(tile) => Some(tile),
            Kernel::WideWinograd => Some(Tile::F4),
            _ => None,
        }
    }

    /// For reports.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Kernel::Direct => "direct",
            Kernel::OnProcessor => "on_processor",
            Kernel::Winograd(Tile::F2) => "winograd_f2",
            Kernel::Winograd(Tile::F4) | Kernel::WideWinograd => "winograd_f4",
            Kernel::DeviceWinograd => "device_winograd",
            Kernel::Pairs => "bf16",
            Kernel::WinogradBands { .. } => "winograd_bands",
        }
    }
}

impl Choice {
    /// The direct kernel, by the processor.
    pub const ON_PROCESSOR: Choice = Choice {
        kernel: Kernel::OnProcessor,
        weights: WeightForm::Raw,
    };

    /// Winograd by a device.
    pub const DEVICE_WINOGRAD: Choice = Choice {
        kernel: Kernel::DeviceWinograd,
        weights: WeightForm::Raw,
    };

    /// Whether the direct kernel computes, wherever it does.
    #[must_use]
    pub fn is_direct(self) -> bool {
        self == Choice::default() || self == Choice::ON_PROCESSOR
    }
}

/// As plans name it: two for each kernel, with weights as packed and prepared.
impl From<Choice> for KernelId {
    fn from(choice: Choice) -> KernelId {
        let kernel = match choice.kernel {
            Kernel::Direct => 0,
            Kernel::Winograd(Tile::F2) => 1,
            Kernel::Winograd(Tile::F4) => 2,
            Kernel::OnProcessor => 3,
            Kernel::DeviceWinograd => BEHIND_BANDS,
            Kernel::Pairs => PAIRS,
            Kernel::WideWinograd => WIDE_WINOGRAD,
            Kernel::WinogradBands { rows } => FIRST_BANDS + u16::from(rows),
        };
        KernelId(2 * kernel + u16::from(choice.weights == WeightForm::Prepared))
    }
}

/// The id of bands of no rows, without its weights' form.
const FIRST_BANDS: u16 = 4;
/// The first id behind those of bands.
const BEHIND_BANDS: u16 = FIRST_BANDS + 1 + u8::MAX as u16;
const PAIRS: u16 = BEHIND_BANDS + 1;
const WIDE_WINOGRAD: u16 = PAIRS + 1;

/// An id that names no kernel of this build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("there is no kernel {}", self.0.0)]
pub struct UnknownKernel(pub KernelId);

impl TryFrom<KernelId> for Choice {
    type Error = UnknownKernel;

    fn try_from(id: KernelId) -> Result<Choice, UnknownKernel> {
        let kernel = match id.0 / 2 {
            0 => Kernel::Direct,
            1 => Kernel::Winograd(Tile::F2),
            2 => Kernel::Winograd(Tile::F4),
            3 => Kernel::OnProcessor,
            BEHIND_BANDS => Kernel::DeviceWinograd,
            PAIRS => Kernel::Pairs,
            WIDE_WINOGRAD => Kernel::WideWinograd,
            bands => Kernel::WinogradBands {
                rows: u8::try_from(bands - FIRST_BANDS).map_err(|_| UnknownKernel(id))?,
            },
        };
        let weights = match id.0 % 2 {
            0 => WeightForm::Raw,
            _ => WeightForm::Prepared,
        };
        Ok(Choice { kernel, weights })
    }
}

/// A name of its own for every choice.
impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kernel.label())?;
        match self.kernel {
            Kernel::WinogradBands { rows } => write!(f, "_{rows}")?,
            Kernel::WideWinograd => f.write_str("_wide")?,
            _ => {}
        }
        match self.weights {
            WeightForm::Raw => Ok(()),
            WeightForm::Prepared => f.write_str("_prepared"),
        }
    }
}

impl Default for Choice {
    fn default() -> Self {
        Choice {
            kernel: Kernel::Direct,
            weights: WeightForm::Raw,
        }
    }
}

/// A kernel that can compute a step, and what it costs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelFacts {
    pub kernel: Kernel,
    /// Floating-point operations of its products, the whole step; a multiply-add counts as two.
    pub flops: u64,
    /// With weights as packed.
    pub raw: FormFacts,
    /// With prepared weights, where the kernel has such a form.
    pub prepared: Option<FormFacts>,
}

/// What a kernel needs with weights of one form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FormFacts {
    /// Of one panel in this form, as `f32`.
    pub panel_bytes: usize,
    /// Workspace of a step is `workspace_bytes + panels * workspace_panel_bytes`, for the panels of its
    /// largest slice.
    pub workspace_bytes: usize,
    pub workspace_panel_bytes: usize,
    /// How often the step brings its weights into the kernel's form.
    pub weight_passes: u64,
    /// Bytes that pass through the caches beside inputs, weights and outputs, in each slice of the step.
    pub moved_slice_bytes: u64,
}

impl FormFacts {
    /// Workspace of slices of at most that many panels.
    #[must_use]
    pub fn slice_workspace_bytes(&self, panels: usize) -> usize {
        panels
            .saturating_mul(self.workspace_panel_bytes)
            .saturating_add(self.workspace_bytes)
    }
}

impl KernelFacts {
    /// The facts of a form; `None` where the kernel does not have it.
    #[must_use]
    pub fn form(&self, form: WeightForm) -> Option<&FormFacts> {
        match form {
            WeightForm::Raw => Some(&self.raw),
            WeightForm::Prepared => self.prepared.as_ref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_choice_has_an_id_and_a_name_of_its_own() {
        let bands = (0..=u8::MAX).map(|rows| Kernel::WinogradBands { rows });
        let others = [
            Kernel::OnProcessor,
            Kernel::DeviceWinograd,
            Kernel::Pairs,
            Kernel::WideWinograd,
        ];
        let kernels = std::iter::once(Kernel::Direct)
            .chain(others)
            .chain(Tile::ALL.map(Kernel::Winograd))
            .chain(bands);
        let (mut ids, mut names) = (BTreeSet::new(), BTreeSet::new());
        for kernel in kernels {
            for weights in [WeightForm::Raw, WeightForm::Prepared] {
                let choice = Choice { kernel, weights };
                let id = KernelId::from(choice);
                assert_eq!(Choice::try_from(id), Ok(choice));
                assert!(ids.insert(id), "{choice} shares its id");
                assert!(names.insert(choice.to_string()), "{choice} shares its name");
            }
        }
        assert_eq!(KernelId::from(Choice::default()), KernelId::DIRECT);
        // Ids are dense, and those behind the last name no kernel.
        let behind = KernelId(ids.len() as u16);
        assert_eq!(Choice::try_from(behind), Err(UnknownKernel(behind)));
        assert!(Choice::try_from(KernelId(u16::MAX)).is_err());
    }
}
