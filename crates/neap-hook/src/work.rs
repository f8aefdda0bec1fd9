//! What gives the card work: launches, copies, fills. They wait for the program's turn.

use crate::export::gated;
use crate::real::Status;
use crate::{agent, gate};

/// Does something on the card when the program has its turn.
#[inline]
pub fn pass(act: impl FnOnce() -> Status) -> Status {
    match agent::get() {
        None => act(),
        Some(agent) => match agent.enter() {
            Err(status) => status,
            Ok(()) => {
                let status = act();
                gate::leave();
                status
            }
        },
    }
}

gated! {
    [cuLaunchKernel cuLaunchKernel_ptsz] (f gx gy gz bx by bz shared stream parameters extra);
    [cuLaunchKernelEx cuLaunchKernelEx_ptsz] (config f parameters extra);
    [cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz] (f gx gy gz bx by bz shared stream parameters);
    [cuLaunchCooperativeKernelMultiDevice] (list count flags);
    [cuLaunch] (f);
    [cuLaunchGrid] (f width height);
    [cuLaunchGridAsync] (f width height stream);
    [cuGraphLaunch cuGraphLaunch_ptsz] (graph stream);
    [cuGraphUpload cuGraphUpload_ptsz] (graph stream);

    [cuMemcpy cuMemcpy_ptds] (to from bytes);
    [cuMemcpyPeer cuMemcpyPeer_ptds] (to there from here bytes);
    [cuMemcpyHtoD_v2 cuMemcpyHtoD_v2_ptds] (to from bytes);
    [cuMemcpyDtoD_v2 cuMemcpyDtoD_v2_ptds] (to from bytes);
    [cuMemcpyDtoA_v2 cuMemcpyDtoA_v2_ptds] (to offset from bytes);
    [cuMemcpyAtoD_v2 cuMemcpyAtoD_v2_ptds] (to from offset bytes);
    [cuMemcpyHtoA_v2 cuMemcpyHtoA_v2_ptds] (to offset from bytes);
    [cuMemcpyAtoH_v2 cuMemcpyAtoH_v2_ptds] (to from offset bytes);
    [cuMemcpyAtoA_v2 cuMemcpyAtoA_v2_ptds] (to offset from start bytes);
    [cuMemcpy2D_v2 cuMemcpy2D_v2_ptds] (what);
    [cuMemcpy2DUnaligned_v2 cuMemcpy2DUnaligned_v2_ptds] (what);
    [cuMemcpy3D_v2 cuMemcpy3D_v2_ptds] (what);
    [cuMemcpy3DPeer cuMemcpy3DPeer_ptds] (what);
    [cuMemcpyAsync cuMemcpyAsync_ptsz] (to from bytes stream);
    [cuMemcpyPeerAsync cuMemcpyPeerAsync_ptsz] (to there from here bytes stream);
    [cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2_ptsz] (to from bytes stream);
    [cuMemcpyDtoHAsync_v2 cuMemcpyDtoHAsync_v2_ptsz] (to from bytes stream);
    [cuMemcpyDtoDAsync_v2 cuMemcpyDtoDAsync_v2_ptsz] (to from bytes stream);
    [cuMemcpyHtoAAsync_v2 cuMemcpyHtoAAsync_v2_ptsz] (to offset from bytes stream);
    [cuMemcpyAtoHAsync_v2 cuMemcpyAtoHAsync_v2_ptsz] (to from offset bytes stream);
    [cuMemcpy2DAsync_v2 cuMemcpy2DAsync_v2_ptsz] (what stream);
    [cuMemcpy3DAsync_v2 cuMemcpy3DAsync_v2_ptsz] (what stream);
    [cuMemcpy3DPeerAsync cuMemcpy3DPeerAsync_ptsz] (what stream);
    [cuMemcpyBatchAsync cuMemcpyBatchAsync_ptsz] (to from sizes count kinds indices number failed stream);
    [cuMemcpyBatchAsync_v2 cuMemcpyBatchAsync_v2_ptsz] (to from sizes count kinds indices number stream);
    [cuMemcpy3DBatchAsync cuMemcpy3DBatchAsync_ptsz] (count list failed flags stream);
    [cuMemcpy3DBatchAsync_v2 cuMemcpy3DBatchAsync_v2_ptsz] (count list flags stream);

    [cuMemsetD8_v2 cuMemsetD8_v2_ptds] (to value count);
    [cuMemsetD16_v2 cuMemsetD16_v2_ptds] (to value count);
    [cuMemsetD32_v2 cuMemsetD32_v2_ptds] (to value count);
    [cuMemsetD2D8_v2 cuMemsetD2D8_v2_ptds] (to pitch value width height);
    [cuMemsetD2D16_v2 cuMemsetD2D16_v2_ptds] (to pitch value width height);
    [cuMemsetD2D32_v2 cuMemsetD2D32_v2_ptds] (to pitch value width height);
    [cuMemsetD8Async cuMemsetD8Async_ptsz] (to value count stream);
    [cuMemsetD16Async cuMemsetD16Async_ptsz] (to value count stream);
    [cuMemsetD32Async cuMemsetD32Async_ptsz] (to value count stream);
    [cuMemsetD2D8Async cuMemsetD2D8Async_ptsz] (to pitch value width height stream);
    [cuMemsetD2D16Async cuMemsetD2D16Async_ptsz] (to pitch value width height stream);
    [cuMemsetD2D32Async cuMemsetD2D32Async_ptsz] (to pitch value width height stream);

    [cuMemPrefetchAsync cuMemPrefetchAsync_ptsz] (at bytes device stream);
    [cuMemPrefetchAsync_v2 cuMemPrefetchAsync_v2_ptsz] (at bytes place flags stream);
    [cuMemPrefetchBatchAsync cuMemPrefetchBatchAsync_ptsz] (at sizes count places indices number flags stream);
    [cuMemDiscardBatchAsync cuMemDiscardBatchAsync_ptsz] (at sizes count flags stream);
    [cuMemDiscardAndPrefetchBatchAsync cuMemDiscardAndPrefetchBatchAsync_ptsz]
        (at sizes count places indices number flags stream);
    [cuStreamWriteValue32 cuStreamWriteValue32_ptsz cuStreamWriteValue32_v2 cuStreamWriteValue32_v2_ptsz]
        (stream at value flags);
    [cuStreamWriteValue64 cuStreamWriteValue64_ptsz cuStreamWriteValue64_v2 cuStreamWriteValue64_v2_ptsz]
        (stream at value flags);
    [cuStreamBatchMemOp cuStreamBatchMemOp_ptsz cuStreamBatchMemOp_v2 cuStreamBatchMemOp_v2_ptsz]
        (stream count list flags);
}
