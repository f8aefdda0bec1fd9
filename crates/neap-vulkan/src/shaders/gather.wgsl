// Runs of words by indices: for each place of the axes before, and each index, one run of x. An index below zero counts from the end.

struct Shape {
    total: u32,
    run: u32,
    indices: u32,
    // Places of the axis.
    size: u32,
    // Words of an index: 1 or 2.
    index_words: u32,
}

@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> w: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<u32>;
// Becomes 1 where an index is out of range; what it stands for is not written.
@group(0) @binding(5) var<storage, read_write> told: array<atomic<u32>>;

const NOWHERE: u32 = 0xffffffffu;

fn place_of(index: u32) -> u32 {
    let s = params.shape;
    let first = params.call.w_at + index * s.index_words;
    let low = w[first];
    var high = bitcast<u32>(bitcast<i32>(low) >> 31u);
    if s.index_words == 2u {
        high = w[first + 1u];
    }
    let back = ~low + 1u;
    if high == 0xffffffffu && low != 0u && back <= s.size {
        return s.size - back;
    }
    if high == 0u && low < s.size {
        return low;
    }
    return NOWHERE;
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let s = params.shape;
    for (var i = id.x; i < s.total; i += groups.x * 64u) {
        let unit = i / s.run;
        let place = place_of(unit % s.indices);
        if place == NOWHERE {
            atomicStore(&told[params.call.m_at], 1u);
        } else {
            let x_first = (unit / s.indices * s.size + place) * s.run + i % s.run;
            y[params.call.y_at + i] = x[params.call.x_at + x_first];
        }
    }
}
