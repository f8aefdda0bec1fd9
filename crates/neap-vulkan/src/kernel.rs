//! The kernels: what is dispatched, as SPIR-V.

use crate::tiles::Way;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernel {
    Conv,
    First,
    Narrow,
    Pool,
    Linear,
    LinearRow,
    /// Of operands as large as the result, or one number.
    Element,
    /// Of runs, too.
    ElementSpread,
    Reorder,
    Rows,
    Copy,
    Move,
    Product,
    Attention,
    Fold,
    Resize,
    Mixed,
    Gather,
    // Of weights of fewer bits.
    ConvBits,
    FirstBits,
    NarrowBits,
    LinearBits,
    LinearRowBits,
    // In blocks.
    LinearBlocks,
    LinearRowBlocks,
    // By tiles in the memory of a workgroup.
    ConvTiles,
    FirstTiles,
    LinearTiles,
    ConvTilesBits,
    FirstTilesBits,
    LinearTilesBits,
    LinearTilesBlocks,
    AttentionTiles,
    // For drivers that compute on the processor: lanes tell each other what they load.
    ConvLanes,
    FirstLanes,
    /// Windows one place apart.
    DepthwiseLanes,
    /// Two places.
    DepthwiseApart,
    LinearLanes,
    LinearRowLanes,
    RowsLanes,
    /// Without a mask.
    AttentionLanes,
    // The same where something is added to results, or they are curved.
    ConvMore,
    FirstMore,
    DepthwiseMore,
    DepthwiseApartMore,
    ElementMore,
    ElementSpreadMore,
    /// With a mask.
    AttentionMasked,
    // Of Winograd, before and behind products, which are a convolution.
    WinogradWeights,
    WinogradInput,
    WinogradOutput,
    WinogradOutputMore,
}

/// Some of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Kernels(u64);

impl Kernels {
    /// All of a device.
    pub(crate) fn all(way: Way) -> Kernels {
        let mut kernels = Kernels::default();
        for kernel in Kernel::ALL {
            let is_there = match kernel {
                _ if kernel.has_lanes() => way == Way::Lanes,
                _ if kernel.has_tiles() => matches!(way, Way::Tiles { .. }),
                _ => true,
            };
            if is_there {
                kernels.add(kernel);
            }
        }
        kernels
    }

    pub(crate) fn add(&mut self, kernel: Kernel) {
        self.0 |= 1 << kernel as u32;
    }

    pub(crate) fn has(self, kernel: Kernel) -> bool {
        self.0 & (1 << kernel as u32) != 0
    }
}

macro_rules! spirv {
    ($name:literal) => {
        include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".spv"))
    };
}

impl Kernel {
    pub(crate) const ALL: [Kernel; 52] = [
        Kernel::Conv,
        Kernel::First,
        Kernel::Narrow,
        Kernel::Pool,
        Kernel::Linear,
        Kernel::LinearRow,
        Kernel::Element,
        Kernel::ElementSpread,
        Kernel::Reorder,
        Kernel::Rows,
        Kernel::Copy,
        Kernel::Move,
        Kernel::Product,
        Kernel::Attention,
        Kernel::Fold,
        Kernel::Resize,
        Kernel::Mixed,
        Kernel::Gather,
        Kernel::ConvBits,
        Kernel::FirstBits,
        Kernel::NarrowBits,
        Kernel::LinearBits,
        Kernel::LinearRowBits,
        Kernel::LinearBlocks,
        Kernel::LinearRowBlocks,
        Kernel::ConvTiles,
        Kernel::FirstTiles,
        Kernel::LinearTiles,
        Kernel::ConvTilesBits,
        Kernel::FirstTilesBits,
        Kernel::LinearTilesBits,
        Kernel::LinearTilesBlocks,
        Kernel::AttentionTiles,
        Kernel::ConvLanes,
        Kernel::FirstLanes,
        Kernel::DepthwiseLanes,
        Kernel::DepthwiseApart,
        Kernel::LinearLanes,
        Kernel::LinearRowLanes,
        Kernel::RowsLanes,
        Kernel::AttentionLanes,
        Kernel::ConvMore,
        Kernel::FirstMore,
        Kernel::DepthwiseMore,
        Kernel::DepthwiseApartMore,
        Kernel::ElementMore,
        Kernel::ElementSpreadMore,
        Kernel::AttentionMasked,
        Kernel::WinogradWeights,
        Kernel::WinogradInput,
        Kernel::WinogradOutput,
        Kernel::WinogradOutputMore,
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
            Kernel::ElementSpread => spirv!("element_spread"),
            Kernel::ElementMore => spirv!("element_more"),
            Kernel::ElementSpreadMore => spirv!("element_spread_more"),
            Kernel::Reorder => spirv!("reorder"),
            Kernel::Rows => spirv!("rows"),
            Kernel::Copy => spirv!("copy"),
            Kernel::Move => spirv!("move"),
            Kernel::Product => spirv!("product"),
            Kernel::Attention => spirv!("attention"),
            Kernel::Fold => spirv!("fold"),
            Kernel::Resize => spirv!("resize"),
            Kernel::Mixed => spirv!("mixed"),
            Kernel::Gather => spirv!("gather"),
            Kernel::ConvBits => spirv!("conv_bits"),
            Kernel::FirstBits => spirv!("first_bits"),
            Kernel::NarrowBits => spirv!("narrow_bits"),
            Kernel::LinearBits => spirv!("linear_bits"),
            Kernel::LinearRowBits => spirv!("linear_row_bits"),
            Kernel::LinearBlocks => spirv!("linear_blocks"),
            Kernel::LinearRowBlocks => spirv!("linear_row_blocks"),
            Kernel::ConvTiles => spirv!("conv_tiles"),
            Kernel::FirstTiles => spirv!("first_tiles"),
            Kernel::LinearTiles => spirv!("linear_tiles"),
            Kernel::ConvTilesBits => spirv!("conv_tiles_bits"),
            Kernel::FirstTilesBits => spirv!("first_tiles_bits"),
            Kernel::LinearTilesBits => spirv!("linear_tiles_bits"),
            Kernel::LinearTilesBlocks => spirv!("linear_tiles_blocks"),
            Kernel::AttentionTiles => spirv!("attention_tiles"),
            Kernel::ConvLanes => spirv!("conv_lanes"),
            Kernel::FirstLanes => spirv!("first_lanes"),
            Kernel::DepthwiseLanes => spirv!("depthwise_lanes"),
            Kernel::DepthwiseApart => spirv!("depthwise_lanes_apart"),
            Kernel::LinearLanes => spirv!("linear_lanes"),
            Kernel::LinearRowLanes => spirv!("linear_row_lanes"),
            Kernel::ConvMore => spirv!("conv_lanes_more"),
            Kernel::FirstMore => spirv!("first_lanes_more"),
            Kernel::DepthwiseMore => spirv!("depthwise_lanes_more"),
            Kernel::DepthwiseApartMore => spirv!("depthwise_lanes_apart_more"),
            Kernel::RowsLanes => spirv!("rows_lanes"),
            Kernel::AttentionLanes => spirv!("attention_lanes"),
            Kernel::AttentionMasked => spirv!("attention_lanes_more"),
            Kernel::WinogradWeights => spirv!("winograd_weights_lanes"),
            Kernel::WinogradInput => spirv!("winograd_input_lanes"),
            Kernel::WinogradOutput => spirv!("winograd_output_lanes"),
            Kernel::WinogradOutputMore => spirv!("winograd_output_lanes_more"),
        }
    }

    /// The same for weights of fewer bits.
    pub(crate) fn of_bits(self) -> Option<Kernel> {
        match self {
            Kernel::Conv => Some(Kernel::ConvBits),
            Kernel::First => Some(Kernel::FirstBits),
            Kernel::Narrow => Some(Kernel::NarrowBits),
            Kernel::Linear => Some(Kernel::LinearBits),
            Kernel::LinearRow => Some(Kernel::LinearRowBits),
            Kernel::ConvTiles => Some(Kernel::ConvTilesBits),
            Kernel::FirstTiles => Some(Kernel::FirstTilesBits),
            Kernel::LinearTiles => Some(Kernel::LinearTilesBits),
            _ => None,
        }
    }

    /// The same for weights in blocks.
    pub(crate) fn of_blocks(self) -> Option<Kernel> {
        match self {
            Kernel::Linear => Some(Kernel::LinearBlocks),
            Kernel::LinearRow => Some(Kernel::LinearRowBlocks),
            Kernel::LinearTiles => Some(Kernel::LinearTilesBlocks),
            _ => None,
        }
    }

    /// The same where something is added to results, or they are curved; others do that always.
    pub(crate) fn of_more(self) -> Kernel {
        match self {
            Kernel::ConvLanes => Kernel::ConvMore,
            Kernel::FirstLanes => Kernel::FirstMore,
            Kernel::DepthwiseLanes => Kernel::DepthwiseMore,
            Kernel::DepthwiseApart => Kernel::DepthwiseApartMore,
            Kernel::Element => Kernel::ElementMore,
            Kernel::ElementSpread => Kernel::ElementSpreadMore,
            Kernel::AttentionLanes => Kernel::AttentionMasked,
            Kernel::WinogradOutput => Kernel::WinogradOutputMore,
            other => other,
        }
    }

    /// And the other way.
    pub(crate) fn plain(self) -> Kernel {
        match self {
            Kernel::ConvMore => Kernel::ConvLanes,
            Kernel::FirstMore => Kernel::FirstLanes,
            Kernel::DepthwiseMore => Kernel::DepthwiseLanes,
            Kernel::DepthwiseApartMore => Kernel::DepthwiseApart,
            Kernel::ElementMore => Kernel::Element,
            Kernel::ElementSpreadMore => Kernel::ElementSpread,
            Kernel::AttentionMasked => Kernel::AttentionLanes,
            Kernel::WinogradOutputMore => Kernel::WinogradOutput,
            other => other,
        }
    }

    /// Only where lanes tell each other what they load.
    pub(crate) fn has_lanes(self) -> bool {
        matches!(
            self.plain(),
            Kernel::ConvLanes
                | Kernel::FirstLanes
                | Kernel::DepthwiseLanes
                | Kernel::DepthwiseApart
                | Kernel::LinearLanes
                | Kernel::LinearRowLanes
                | Kernel::RowsLanes
                | Kernel::AttentionLanes
                | Kernel::WinogradWeights
                | Kernel::WinogradInput
                | Kernel::WinogradOutput
        )
    }

    /// Only where a workgroup has memory for tiles.
    pub(crate) fn has_tiles(self) -> bool {
        self.multiplies_tiles() || self == Kernel::AttentionTiles
    }

    /// Whether it computes tiles of places and panels, of which it is told the sizes.
    pub(crate) fn multiplies_tiles(self) -> bool {
        matches!(
            self,
            Kernel::ConvTiles
                | Kernel::FirstTiles
                | Kernel::LinearTiles
                | Kernel::ConvTilesBits
                | Kernel::FirstTilesBits
                | Kernel::LinearTilesBits
                | Kernel::LinearTilesBlocks
        )
    }

    /// Whether the grid's second size counts panels of weights.
    pub(crate) fn has_panels(self) -> bool {
        self.multiplies_tiles()
            || matches!(
                self,
                Kernel::Conv
                    | Kernel::ConvBits
                    | Kernel::First
                    | Kernel::FirstBits
                    | Kernel::Narrow
                    | Kernel::NarrowBits
                    | Kernel::Linear
                    | Kernel::LinearBits
                    | Kernel::LinearBlocks
                    | Kernel::LinearRow
                    | Kernel::LinearRowBits
                    | Kernel::LinearRowBlocks
            )
    }

    /// Whether it is told how many panels a slice has.
    pub(crate) fn counts_panels(self) -> bool {
        self.panels_each() > 1 || self.multiplies_tiles()
    }

    /// How many panels an invocation computes at most.
    pub(crate) fn panels_each(self) -> usize {
        match self.plain() {
            Kernel::ConvLanes | Kernel::FirstLanes | Kernel::LinearLanes => 2,
            _ => 1,
        }
    }

    /// Outputs of how many rows an invocation of a depthwise layer computes.
    pub(crate) fn rows_each(self) -> usize {
        match self.plain() {
            Kernel::DepthwiseLanes => 2,
            _ => 1,
        }
    }

    /// Whether it finds errors in the data, and says so in the fifth binding.
    pub(crate) fn tells(self) -> bool {
        self == Kernel::Gather
    }

    /// Bytes of an element of each binding: x, w, r, y, mask.
    pub(crate) fn element_bytes(self) -> [u32; 5] {
        match self.plain() {
            Kernel::Conv
            | Kernel::ConvBits
            | Kernel::ConvTiles
            | Kernel::ConvTilesBits
            | Kernel::ConvLanes
            | Kernel::DepthwiseLanes
            | Kernel::DepthwiseApart
            | Kernel::WinogradWeights
            | Kernel::WinogradInput
            | Kernel::WinogradOutput
            | Kernel::Pool => [16; 5],
            Kernel::First
            | Kernel::FirstBits
            | Kernel::FirstTiles
            | Kernel::FirstTilesBits
            | Kernel::FirstLanes
            | Kernel::Narrow
            | Kernel::NarrowBits => [4, 16, 16, 16, 4],
            Kernel::Linear
            | Kernel::LinearBits
            | Kernel::LinearRow
            | Kernel::LinearRowBits
            | Kernel::LinearRowLanes => [4, 16, 4, 4, 4],
            Kernel::LinearLanes | Kernel::LinearTiles | Kernel::LinearTilesBits => {
                [16, 16, 4, 4, 4]
            }
            Kernel::LinearTilesBlocks => [16, 4, 4, 4, 4],
            Kernel::AttentionLanes | Kernel::AttentionTiles => [16, 16, 16, 16, 4],
            _ => [4; 5],
        }
    }
}
