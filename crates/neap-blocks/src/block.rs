//! Types of blocks.

use neap_gguf::Kind;

macro_rules! block_types {
    ($($name:ident $kind:ident;)*) => {
        /// A type of weights that products are computed with.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum BlockType { $(#[doc = concat!("GGUF's ", stringify!($kind))] $name,)* }

        impl BlockType {
            /// Every type.
            pub const ALL: &[BlockType] = &[$(BlockType::$name,)*];

            /// The type of a tensor; `None` where no kernel computes with it.
            #[must_use]
            pub fn of_kind(kind: Kind) -> Option<Self> {
                match kind { $(Kind::$kind => Some(BlockType::$name),)* _ => None }
            }

            /// As files name it.
            #[must_use]
            pub fn kind(self) -> Kind {
                match self { $(BlockType::$name => Kind::$kind,)* }
            }
        }
    };
}

block_types! {
    F32 F32;
    F16 F16;
    Bf16 Bf16;
    Q8_0 Q8_0;
    Q4_0 Q4_0;
    Q4_1 Q4_1;
    Q5_0 Q5_0;
    Q5_1 Q5_1;
    Q2K Q2K;
    Q3K Q3K;
    Q4K Q4K;
    Q5K Q5K;
    Q6K Q6K;
    Iq4Nl Iq4Nl;
    Iq4Xs Iq4Xs;
    Mxfp4 Mxfp4;
}

impl BlockType {
    /// By GGUF's number of the type; `None` where no kernel computes with it.
    #[must_use]
    pub fn from_gguf(id: u32) -> Option<Self> {
        Kind::of_number(id).and_then(Self::of_kind)
    }

    /// Elements of a block.
    #[must_use]
    pub fn block_elements(self) -> usize {
        self.kind().block_elements() as usize
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(self) -> usize {
        self.kind().block_bytes() as usize
    }

    /// Bytes of a row of `k` elements.
    ///
    /// # Panics
    /// `k` is no multiple of a block's elements.
    #[must_use]
    pub fn row_bytes(self, k: usize) -> usize {
        assert!(k.is_multiple_of(self.block_elements()), "rows are blocks");
        k / self.block_elements() * self.block_bytes()
    }
}
