// `conv.wgsl` for drivers that compute on the processor. They load from memory lane by lane, so there each lane loads another
// part of what all need, and tells the others. One invocation: the channels of two panels at four neighbouring outputs.
// Such drivers compute both ways of a branch, and a pass of a loop that is not wanted, and keep nothing of it. So loops look
// whether to go on where they end. Inputs have a multiple of four channels.

@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;

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
    let w_first = params.call.w_at + image * s.images_apart + own_panel * panel_fours(channels * taps);
    let w_next = w_first + select(0u, panel_fours(channels * taps), panels > 1u);
    begin_sums(w_first, w_next);

    let begin = windows(first, count);
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
                    let row = begin.rows[p] + i32(ky * s.dilation_h);
                    let col = begin.cols[p] + i32(kx * s.dilation_w);
                    inside[p] = row >= 0 && row < i32(s.in_h) && col >= 0 && col < i32(s.in_w);
                    origin[p] = x_block + select(0u, u32(row * i32(s.in_w) + col) * 4u, inside[p]);
                }
                var at = 0u;
                loop {
                    let x0 = select(vec4<f32>(0.0), x[origin[0] + at], inside[0]);
                    let x1 = select(vec4<f32>(0.0), x[origin[1] + at], inside[1]);
                    let x2 = select(vec4<f32>(0.0), x[origin[2] + at], inside[2]);
                    let x3 = select(vec4<f32>(0.0), x[origin[3] + at], inside[3]);
                    let a = w[w_at];
                    let b = w[w_at + 8u];
                    let c = w[w_at + apart];
                    let d = w[w_at + apart + 8u];
                    add_panels(x0, x1, x2, x3, a, b, c, d);
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
    store(y_first, positions, count, panels);
}
