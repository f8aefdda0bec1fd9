// `conv.wgsl` for drivers that compute on the processor. They load from memory lane by lane, so there each lane loads another
// part of what all need, and tells the others. One invocation: the channels of two panels at four neighbouring outputs.
// Such drivers compute both ways of a branch, and a pass of a loop that is not wanted, and keep nothing of it. So loops look
// whether to go on where they end. Inputs have a multiple of four channels.

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read> r: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;

// By place, then by fours of channels of both panels.
var<private> sums: array<array<vec4<f32>, 8>, 4>;

fn product(sum: vec4<f32>, x: vec4<f32>, w0: vec4<f32>, w1: vec4<f32>, w2: vec4<f32>, w3: vec4<f32>) -> vec4<f32> {
    return sum + x.x * w0 + x.y * w1 + x.z * w2 + x.w * w3;
}

// Four channels of four places, from four channels of input.
fn add(
    j: u32,
    x0: vec4<f32>,
    x1: vec4<f32>,
    x2: vec4<f32>,
    x3: vec4<f32>,
    w0: vec4<f32>,
    w1: vec4<f32>,
    w2: vec4<f32>,
    w3: vec4<f32>,
) {
    sums[0][j] = product(sums[0][j], x0, w0, w1, w2, w3);
    sums[1][j] = product(sums[1][j], x1, w0, w1, w2, w3);
    sums[2][j] = product(sums[2][j], x2, w0, w1, w2, w3);
    sums[3][j] = product(sums[3][j], x3, w0, w1, w2, w3);
}

fn finish(at: u32, result: vec4<f32>) {
    var sum = result;
    if MORE {
        if params.call.residual == 1u {
            sum += r[params.call.r_at + at];
        } else if params.call.residual == 2u {
            sum += y[params.call.y_at + at];
        }
    }
    y[params.call.y_at + at] = bound(sum);
}

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(subgroup_invocation_id) own: u32) {
    let s = params.shape;
    let positions = s.out_h * s.out_w;
    if (id.x - own) * 4u >= positions {
        return;
    }
    // Lanes past the end compute what the last one does, and store nothing.
    let first = min(id.x * 4u, positions - 1u);
    let count = min(4u, positions - first);
    let lane = own & 7u;
    let image = id.z;
    let taps = s.kernel_h * s.kernel_w;
    let channels = s.c_in / s.groups;
    // Where there is but one panel, it is computed twice, and stored once.
    let own_panel = id.y * s.panels_each;
    let panel = s.first_panel + own_panel;
    let panels = min(s.panels_each, s.kind - own_panel);
    let group = panel * 16u / (s.c_out / s.groups);
    let planes_in = (s.c_in + 15u) / 16u;
    let planes_out = (s.c_out + 15u) / 16u;
    let plane = s.in_h * s.in_w * 4u;
    let y_first = ((image * planes_out + panel) * positions + first) * 4u;
    let w_first = params.call.w_at + own_panel * panel_fours(channels * taps);
    let w_next = w_first + select(0u, panel_fours(channels * taps), panels > 1u);
    for (var j = 0u; j < 4u; j++) {
        let low = bias(w_first, j);
        let high = bias(w_next, j);
        for (var p = 0u; p < 4u; p++) {
            sums[p][j] = low;
            sums[p][4u + j] = high;
        }
    }

    // Where each output's window begins; one past the last is computed like the last and not stored.
    var rows: array<i32, 4>;
    var cols: array<i32, 4>;
    var row = first / s.out_w;
    var col = first - row * s.out_w;
    for (var p = 0u; p < 4u; p++) {
        rows[p] = i32(row * s.stride_h) - i32(s.pad_h);
        cols[p] = i32(col * s.stride_w) - i32(s.pad_w);
        let goes_on = p + 1u < count;
        let wraps = col + 1u == s.out_w;
        row = select(row, row + 1u, goes_on && wraps);
        col = select(col, select(col + 1u, 0u, wraps), goes_on);
    }
    var x_block = params.call.x_at + (image * planes_in + group * channels / 16u) * plane;
    var w_at = steps_at(w_first) + lane;
    let apart = w_next - w_first;
    var done = 0u;
    loop {
        let fours = min(4u, (channels - done) / 4u);
        var ky = 0u;
        loop {
            var kx = 0u;
            loop {
                var origin: array<u32, 4>;
                var inside: array<bool, 4>;
                for (var p = 0u; p < 4u; p++) {
                    let row = rows[p] + i32(ky * s.dilation_h);
                    let col = cols[p] + i32(kx * s.dilation_w);
                    inside[p] = row >= 0 && row < i32(s.in_h) && col >= 0 && col < i32(s.in_w);
                    origin[p] = x_block + select(0u, u32(row * i32(s.in_w) + col) * 4u, inside[p]);
                }
                var at = 0u;
                loop {
                    let x0 = select(vec4<f32>(0.0), x[origin[0] + at], inside[0]);
                    let x1 = select(vec4<f32>(0.0), x[origin[1] + at], inside[1]);
                    let x2 = select(vec4<f32>(0.0), x[origin[2] + at], inside[2]);
                    let x3 = select(vec4<f32>(0.0), x[origin[3] + at], inside[3]);
                    // Of four steps: two in each.
                    let a = w[w_at];
                    let b = w[w_at + 8u];
                    let c = w[w_at + apart];
                    let d = w[w_at + apart + 8u];
                    add(0u, x0, x1, x2, x3, subgroupBroadcast(a, 0u), subgroupBroadcast(a, 4u), subgroupBroadcast(b, 0u), subgroupBroadcast(b, 4u));
                    add(1u, x0, x1, x2, x3, subgroupBroadcast(a, 1u), subgroupBroadcast(a, 5u), subgroupBroadcast(b, 1u), subgroupBroadcast(b, 5u));
                    add(2u, x0, x1, x2, x3, subgroupBroadcast(a, 2u), subgroupBroadcast(a, 6u), subgroupBroadcast(b, 2u), subgroupBroadcast(b, 6u));
                    add(3u, x0, x1, x2, x3, subgroupBroadcast(a, 3u), subgroupBroadcast(a, 7u), subgroupBroadcast(b, 3u), subgroupBroadcast(b, 7u));
                    add(4u, x0, x1, x2, x3, subgroupBroadcast(c, 0u), subgroupBroadcast(c, 4u), subgroupBroadcast(d, 0u), subgroupBroadcast(d, 4u));
                    add(5u, x0, x1, x2, x3, subgroupBroadcast(c, 1u), subgroupBroadcast(c, 5u), subgroupBroadcast(d, 1u), subgroupBroadcast(d, 5u));
                    add(6u, x0, x1, x2, x3, subgroupBroadcast(c, 2u), subgroupBroadcast(c, 6u), subgroupBroadcast(d, 2u), subgroupBroadcast(d, 6u));
                    add(7u, x0, x1, x2, x3, subgroupBroadcast(c, 3u), subgroupBroadcast(c, 7u), subgroupBroadcast(d, 3u), subgroupBroadcast(d, 7u));
                    continuing {
                        w_at += 16u;
                        at++;
                        break if at >= fours;
                    }
                }
                continuing {
                    kx++;
                    break if kx >= s.kernel_w;
                }
            }
            continuing {
                ky++;
                break if ky >= s.kernel_h;
            }
        }
        continuing {
            done += 16u;
            x_block += plane;
            break if done >= channels;
        }
    }
    if id.x * 4u >= positions {
        return;
    }
    for (var p = 0u; p < 4u; p++) {
        for (var j = 0u; j < 4u; j++) {
            if p < count {
                finish(y_first + p * 4u + j, sums[p][j]);
            }
        }
    }
    if panels > 1u {
        for (var p = 0u; p < 4u; p++) {
            for (var j = 0u; j < 4u; j++) {
                if p < count {
                    finish(y_first + (positions + p) * 4u + j, sums[p][4u + j]);
                }
            }
        }
    }
    if !MORE || is_bound() {
        return;
    }
    for (var q = 0u; q < panels; q++) {
        for (var i = 0u; i < count * 4u; i++) {
            let at = params.call.y_at + y_first + q * positions * 4u + i;
            y[at] = activate(y[at]);
        }
    }
}
