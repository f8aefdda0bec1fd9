//! The kernels: what is dispatched, as SPIR-V.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    Conv,
    First,
    Narrow,
    Pool,
    Linear,
    LinearRow,
    Element,
    Reorder,
    Rows,
    Copy,
    Move,
    Product,
    Attention,
    Fold,
    Resize,
}

macro_rules! spirv {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".spv"))
    };
}

impl Kernel {
    pub(crate) const ALL: [Kernel; 15] = [
        Kernel::Conv,
        Kernel::First,
        Kernel::Narrow,
        Kernel::Pool,
        Kernel::Linear,
        Kernel::LinearRow,
        Kernel::Element,
        Kernel::Reorder,
        Kernel::Rows,
        Kernel::Copy,
        Kernel::Move,
        Kernel::Product,
        Kernel::Attention,
        Kernel::Fold,
        Kernel::Resize,
    ];

    pub(crate) fn spirv(self) -> &'static [u8] {
        match self {
            Kernel::Conv => spirv!("conv"),
            Kernel::First => spirv!("first"),
            Kernel::Narrow => spirv!("narrow"),
            Kernel::Pool => spirv!("pool"),
            Kernel::Linear => spirv!("linear"),
            Kernel::LinearRow => spirv!("linear_row"),
            Kernel::Element => spirv!("element"),
            Kernel::Reorder => spirv!("reorder"),
            Kernel::Rows => spirv!("rows"),
            Kernel::Copy => spirv!("copy"),
            Kernel::Move => spirv!("move"),
            Kernel::Product => spirv!("product"),
            Kernel::Attention => spirv!("attention"),
            Kernel::Fold => spirv!("fold"),
            Kernel::Resize => spirv!("resize"),
        }
    }

    /// Bytes of an element of each binding: x, w, r, y, mask.
    pub(crate) fn element_bytes(self) -> [u32; 5] {
        match self {
            Kernel::Conv | Kernel::Pool => [16; 5],
            Kernel::First | Kernel::Narrow => [4, 16, 16, 16, 4],
            Kernel::Linear | Kernel::LinearRow => [4, 16, 4, 4, 4],
            _ => [4; 5],
        }
    }
}
