//! Destination-passing compute kernels over 16-channel panels; AVX-512, AVX2, NEON and portable paths.
//!
//! Every kernel writes into memory its caller owns and allocates nothing. Kernels that need
//! scratch have a sibling that returns its size in bytes.

pub mod attention;
pub mod conv; // blocked convolution, 1x1, first layer, grouped
pub mod depthwise;
pub mod elementwise;
pub mod epilogue; // bias, residual and activation applied while results are still in registers
pub mod error; // why a kernel refuses a call
pub mod integer; // 8-bit steps x 8-bit panels, summed in 32 bits
pub mod linear; // row-major activations x panels, batched matrix product
pub mod panel; // the panel weight format and packing into it
pub mod parallel; // how kernels ask for threads
pub mod plain; // convolutions of plain tensors with weights that change, forward and backward
pub mod planes; // bands of rows of taller tensors
pub mod pool;
pub mod reorder; // plain <-> channel-blocked
pub mod resize;
pub mod rows; // softmax and normalisations over rows
pub mod simd; // the 16-lane vector and run-time choice of instruction set
pub mod window; // sliding windows, and one axis of them
pub mod winograd; // 3x3 convolution with fewer multiplications

mod share; // what the tasks of one call share, and how work is cut
mod tile; // the micro-kernels of all products, and how layers are cut into tiles
