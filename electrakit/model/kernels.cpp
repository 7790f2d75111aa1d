// Fused CPU kernels for what is between two matrix products, each in one pass. Optional tensors are null pointers.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <omp.h>
#include <vector>
#define EACH_ROW _Pragma("omp parallel for schedule(static) num_threads(threads)") for (Int row = 0; row < rows; row++)
#define SIMD _Pragma("omp simd")
#define SIMD_SUM _Pragma("omp simd reduction(+ : total, along)")
#define SIMD_MAX _Pragma("omp simd reduction(max : most)")
typedef int64_t Int;
extern "C" void sgemm_(const char*, const char*, const int*, const int*, const int*, const float*, const float*, const int*, const float*,
                       const int*, const float*, float*, const int*);  // from torch's library
template <class To, class From> static inline To as_bits(From from) { To to; std::memcpy(&to, &from, sizeof to); return to; }
struct bf16 {
    uint16_t bits;
    operator float() const { return as_bits<float>((uint32_t)bits << 16); }
    uint32_t round(uint32_t all) { return (all + 0x7FFF + (all >> 16 & 1)) >> 16; }  // round half to even
    void operator=(float value) { bits = value == value ? round(as_bits<uint32_t>(value)) : 0x7FC0; }
};
struct Dropout {
    uint32_t first, second, limit; float scale;
    Dropout(uint64_t seed, float rate) : first(seed), second(seed >> 32), limit(rate * 4294967296.0), scale(1 / (1 - rate)) {}
    float operator()(uint32_t index) const {  // 0 at the given rate, else the scale; a hash of the element's index
        uint32_t hash = index * 0x9E3779B1u + first;
        hash = (hash ^ hash >> 16) * 0x7FEB352Du, hash = (hash ^ hash >> 15 ^ second) * 0x846CA68Bu;
        return (hash ^ hash >> 16) >= limit ? scale : 0.0f;
    }
};

static inline float fast_exp(float x) {  // relative error about 1e-7, for x up to 88; NaN stays NaN
    x = x < -87.0f ? -87.0f : x;
    float whole = std::nearbyint(x * 1.44269504f), rest = x - whole * 0.693359375f + whole * 2.12194440e-4f, series = 1.9875691e-4f;
    for (float factor : {1.3981999e-3f, 8.3334519e-3f, 4.1665796e-2f, 1.6666665e-1f, 5e-1f, 1.0f, 1.0f}) series = series * rest + factor;
    return series * as_bits<float>(((int32_t)whole + 127) << 23);
}
static inline float normal(float x, float& density) {  // the normal CDF and density at x: Abramowitz and Stegun 7.1.26
    float bell = fast_exp(-0.5f * x * x), t = 1 / (1 + 0.3275911f * 0.70710678f * std::fabs(x));
    float tail = 0.5f * bell * t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    density = 0.39894228f * bell;
    return x < 0 ? tail : 1 - tail;
}

// sum = x + dropout(y + bias); normed = (sum - mean) / deviation; out = normed * gain + shift
template <class X, class Y> void add_norm(const X* x, const Y* y, const float* bias, const float* gain, const float* shift, X* sum,
                                         Y* normed, Y* out, float* inverse, Int rows, Int size, float epsilon, float rate,
                                         uint64_t seed, int threads) {
    EACH_ROW {
        const Dropout drop(seed, rate);
        float total = 0, along = 0, buffer[size];
        Int at = row * size;
        SIMD_SUM for (Int i = 0; i < size; i++)
            total += buffer[i] = (float)x[at + i] + ((float)y[at + i] + bias[i]) * drop(at + i);
        float mean = total / size;
        SIMD_SUM for (Int i = 0; i < size; i++) along += (buffer[i] - mean) * (buffer[i] - mean);
        float scale = inverse[row] = 1 / std::sqrt(along / size + epsilon);
        SIMD for (Int i = 0; i < size; i++) {
            float value = (buffer[i] - mean) * scale;
            normed[at + i] = value, out[at + i] = value * gain[i] + shift[i];
            if (sum) sum[at + i] = buffer[i];
        }
    }
}

// `grad_sum` is the gradient of the sum itself. `partial` (threads, 3, size) accumulates the gradients of gain, shift and bias per thread.
template <class X, class Y> void add_norm_back(const Y* grad, const X* grad_sum, const Y* normed, const float* gain, const float* inverse,
                                              X* grad_x, Y* grad_y, float* partial, Int rows, Int size, float rate, uint64_t seed,
                                              int threads) {
    EACH_ROW {
        const Dropout drop(seed, rate);
        float *gains = partial + omp_get_thread_num() * 3 * size, *shifts = gains + size, *biases = shifts + size, total = 0, along = 0;
        const float share = 1.0f / size; Int at = row * size;
        SIMD_SUM for (Int i = 0; i < size; i++) {
            float one = grad[at + i], value = normed[at + i];
            gains[i] += one * value, shifts[i] += one, total += one * gain[i], along += one * gain[i] * value;
        }
        SIMD for (Int i = 0; i < size; i++) {
            float one = ((float)grad[at + i] * gain[i] - (total + (float)normed[at + i] * along) * share) * inverse[row];
            grad_x[at + i] = one += grad_sum ? (float)grad_sum[at + i] : 0;
            grad_y[at + i] = one *= drop(at + i), biases[i] += one;
        }
    }
}

// out = gelu(z + bias). GATED: gelu(first half of z) * second half. DROPS: dropout of that. BACK: the gradient of z instead.
template <class T, bool BACK, bool GATED, bool DROPS> void gelu(const T* z, const float* bias, const T* grad, T* out, float* partial,
                                                                Int rows, Int size, float rate, uint64_t seed, int threads) {
    EACH_ROW {
        const Dropout drop(seed, rate);
        const T *in = z + row * size * (GATED ? 2 : 1), *gates = in + size;
        T *to = out + row * size * (BACK && GATED ? 2 : 1), *to_gates = to + size;
        float* biases = partial + omp_get_thread_num() * size;
        SIMD for (Int i = 0; i < size; i++) {
            float gate = GATED ? (float)gates[i] : 1, kept = DROPS ? drop(row * size + i) : 1;
            float x = (float)in[i] + bias[i], density, below = normal(x, density);
            if (BACK) {
                float one = (float)grad[row * size + i] * kept, slope = one * (below + x * density);
                to[i] = slope * gate, biases[i] += slope;
                if (GATED) to_gates[i] = one * x * below;
            } else to[i] = x * below * gate * kept;
        }
    }
}

// Products of bf16 are made of numbers rounded to it, and added up in float32, where the processor has instructions for that. They take
// numbers in pairs, two neighbours along the inner dimension in one word. Denormal numbers count as 0 there.
#ifdef __AVX512BF16__
#include <immintrin.h>
const int LANES = 16, FEW = 4;  // words in a vector; a tile of the result has up to FEW rows of up to FEW vectors
static inline __mmask16 up_to(int count) { return count < LANES ? (1u << count) - 1 : 0xFFFF; }
static inline __m512 load(const float* in, int count) { return _mm512_maskz_loadu_ps(count > 0 ? up_to(count) : 0, in); }

// (rows, inner) -> pairs (rows, inner / 2)
static void pack_along(const float* in, int rows, int inner, uint32_t* pairs) {
    for (int row = 0; row < rows; row++, in += inner, pairs += (inner + 1) / 2)
        for (int i = 0; i < inner; i += 2 * LANES) {
            __m512bh both = _mm512_cvtne2ps_pbh(load(in + i + LANES, inner - i - LANES), load(in + i, inner - i));
            _mm512_mask_storeu_epi32(pairs + i / 2, up_to((inner - i + 1) / 2), (__m512i)both);
        }
}

// (inner, columns) -> pairs (inner / 2, step), with zeros behind the columns
static void pack_across(const float* in, int inner, int columns, int step, uint32_t* pairs) {
    const auto rounded = [](__m512 numbers) { return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(numbers)); };
    for (int k = 0; k < inner; k += 2, in += 2 * columns, pairs += step)
        for (int j = 0; j < columns; j += LANES) {
            __m512i low = rounded(load(in + j, columns - j));
            __m512i high = rounded(load(in + columns + j, k + 1 < inner ? columns - j : 0));
            _mm512_storeu_si512(pairs + j, _mm512_or_si512(_mm512_slli_epi32(high, 16), low));
        }
}

// c = a b + beta c for a tile. Row r and pair k of `a` are at a[r * step_row + k * step_inner]; `last` masks the last vector.
template <int VECTORS> static void tile(const uint32_t* a, int step_row, int step_inner, int rows, const uint32_t* b, int step, int half,
                                        float beta, float* c, int columns, __mmask16 last) {
    __m512 sums[FEW][VECTORS];
    for (int row = 0; row < FEW; row++)
        for (int v = 0; v < VECTORS; v++) sums[row][v] = _mm512_setzero_ps();
    for (int k = 0; k < half; k++, a += step_inner, b += step)
        for (int row = 0; row < FEW; row++) {
            __m512bh one = (__m512bh)_mm512_set1_epi32(a[row < rows ? row * step_row : 0]);
            for (int v = 0; v < VECTORS; v++)
                sums[row][v] = _mm512_dpbf16_ps(sums[row][v], one, (__m512bh)_mm512_loadu_si512(b + v * LANES));
        }
    for (int row = 0; row < rows; row++)
        for (int v = 0; v < VECTORS; v++) {
            float* to = c + (size_t)row * columns + v * LANES;
            const __mmask16 some = v + 1 < VECTORS ? 0xFFFF : last;
            if (beta) sums[row][v] = _mm512_add_ps(sums[row][v], _mm512_maskz_loadu_ps(some, to));
            _mm512_mask_storeu_ps(to, some, sums[row][v]);
        }
}

static void half_product(char first, char second, int rows, int columns, int inner, const float* a, const float* b, float beta, float* c) {
    const auto whole = [](int count) { return (count + LANES - 1) / LANES * LANES; };
    const int half = (inner + 1) / 2, step_a = whole(rows), step = whole(columns);
    static thread_local std::vector<uint32_t> space;
    space.resize((size_t)half * (step_a + step + columns));
    uint32_t *left = space.data(), *right = left + (size_t)half * step_a, *turned = right + (size_t)half * step;
    if (first == 'N') pack_along(a, rows, inner, left);
    else pack_across(a, inner, rows, step_a, left);
    if (second == 'N') pack_across(b, inner, columns, step, right);
    else pack_along(b, columns, inner, turned);
    for (int k = 0; second == 'T' && k < half; k++)
        for (int j = 0; j < step; j++) right[(size_t)k * step + j] = j < columns ? turned[(size_t)j * half + k] : 0;
    const int step_row = first == 'N' ? half : 1, step_inner = first == 'N' ? 1 : step_a;
    for (int j = 0; j < columns; j += FEW * LANES) {
        const int vectors = (columns - j + LANES - 1) / LANES;
        const auto compute = vectors == 1 ? tile<1> : vectors == 2 ? tile<2> : vectors == 3 ? tile<3> : tile<FEW>;
        const __mmask16 last = up_to(columns - j - ((vectors < FEW ? vectors : FEW) - 1) * LANES);
        for (int i = 0; i < rows; i += FEW)
            compute(left + (size_t)i * step_row, step_row, step_inner, rows - i < FEW ? rows - i : FEW, right + j, step, half, beta,
                    c + (size_t)i * columns + j, columns, last);
    }
}
#endif

// c = a b + beta c, row-major and contiguous, beta 0 or 1; 'T': transposed
template <class T> static void product(char first, char second, int rows, int columns, int inner, const float* a, int step_a,
                                       const float* b, int step_b, float beta, float* c) {
#ifdef __AVX512BF16__
    if (sizeof(T) == 2) return half_product(first, second, rows, columns, inner, a, b, beta, c);
#endif
    const float one = 1; sgemm_(&second, &first, &columns, &rows, &inner, &one, b, &step_b, a, &step_a, &beta, c, &columns);
}

// RoPE on query and key, in place: turns each pair (i, i + half) of a head. `sign` is 1, or -1 for the gradient.
template <class T> void rotate(T* qkv, const float* cosine, const float* sine, Int rows, Int heads, Int half, float sign, int threads) {
    EACH_ROW {
        const float *along = cosine + row * half, *across = sine + row * half;
        for (Int head = 0; head < 2 * heads; head++) {
            T *first = qkv + (row * 3 * heads + head) * 2 * half, *second = first + half;
            SIMD for (Int i = 0; i < half; i++) {
                float x = first[i], y = second[i], turned = sign * across[i];
                first[i] = x * along[i] - y * turned, second[i] = y * along[i] + x * turned;
            }
        }
    }
}

// One head of one row at a time, so that it stays in the cache; row r has the tokens from starts[r] up to starts[r + 1].
// With `grad`, the gradient of qkv instead. With `places`, queries and keys of distances, each score has two more products: of the query with
// the distance's key, of the key with the distance's query. Distance d, of the query's position minus the key's, has the row place_of[middle + d]
// of `places`; rows ascend, so that a row of few tokens needs few. `partial` (threads, num_places, 2 H) accumulates the gradient of `places` per thread.
template <class T> void attention(const T* qkv, const float* bias, const Int* starts, const T* grad, T* out, float* logsum, Int rows,
                                  int heads, int width, float rate, uint64_t seed, const T* places, const Int* place_of,
                                  const Int* positions, float* partial, Int num_places, Int middle, int threads) {
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
    for (Int row = 0; row < rows; row++)
        for (int head = 0; head < heads; head++) {
            const int BLOCK = 128, hidden = heads * width, num_out = grad ? 3 : 1, start = starts[row], length = starts[row + 1] - start;
            if (!length) continue;
            const float scale = 1 / std::sqrt((float)width * (places ? 3 : 1)); const size_t area = (size_t)length * width;
            const int reach = places ? positions[start + length - 1] - positions[start] : 0;  // the longest distance
            const int low = places ? place_of[middle - reach] : 0, near = places ? place_of[middle + reach] - low + 1 : 0;
            const size_t table = (size_t)near * width, to_places = (size_t)near * (BLOCK + length);  // scores of a block, and of all keys
            const Dropout drop(seed ^ (0x9E3779B97F4A7C15u * (row * heads + head + 1)), rate);  // indices count within one head
            static thread_local std::vector<float> space;
            space.resize(16 + 6 * area + BLOCK * (width + 2 * (size_t)length) + 4 * table + 2 * to_places + length + 2 * reach + 1);
            // Aligned to 64 bytes: the order of summation never changes.
            float *query = (float*)(((uintptr_t)space.data() + 63) & ~(uintptr_t)63), *key = query + area, *value = key + area,
                  *result = value + area, *given = result + 3 * area, *scores = given + BLOCK * width, *slopes = scores + BLOCK * length,
                  *place_query = slopes + BLOCK * length, *place_key = place_query + table, *place_slopes = place_key + table,
                  *of_query = place_slopes + 2 * table, *of_key = of_query + near * BLOCK, *query_slopes = of_query + to_places,
                  *key_slopes = query_slopes + near * BLOCK;
            int *spot = (int*)(query_slopes + to_places), *place = spot + length + reach;  // each token's position; the place of a distance
            for (int token = 0; places && token < length; token++) spot[token] = positions[start + token] - positions[start];
            for (int d = -reach; places && d <= reach; d++) place[d] = place_of[middle + d] - low;
            for (int part = 0; part < 3; part++)
                for (int token = 0, at = part * hidden + head * width; token < length; token++)
                    for (int i = 0; i < width; i++)
                        query[part * area + token * width + i] =
                            ((float)qkv[(Int)(start + token) * 3 * hidden + at + i] + bias[at + i]) * (part ? 1 : scale);
            for (int part = 0; part < 2; part++)
                for (int row = 0; row < near; row++)
                    for (int i = 0; i < width; i++)
                        place_query[part * table + row * width + i] =
                            (float)places[((Int)(low + row) * 2 + part) * hidden + head * width + i] * (part ? 1 : scale);
            if (places) product<T>('N', 'T', length, near, width, key, width, place_query, width, 0, of_key);
            if (places && grad) std::memset(key_slopes, 0, sizeof(float) * near * length);
            for (int first = 0; first < length; first += BLOCK) {
                int count = length - first < BLOCK ? length - first : BLOCK;
                product<T>('N', 'T', count, length, width, query + first * width, width, key, width, 0, scores);
                if (places) product<T>('N', 'T', count, near, width, query + first * width, width, place_key, width, 0, of_query);
                if (places && grad) std::memset(query_slopes, 0, sizeof(float) * near * count);
                for (int i = 0; grad && i < count; i++)
                    for (int j = 0; j < width; j++) given[i * width + j] = grad[(Int)(start + first + i) * hidden + head * width + j];
                if (grad) product<T>('N', 'T', count, length, width, given, width, value, width, 0, slopes);
                for (int i = 0; i < count; i++) {
                    Int token = (Int)(start + first + i) * heads + head, index = (Int)(first + i) * length;
                    float *score = scores + i * length, *slope = slopes + i * length, total = 0, along = 0;
                    const int* at = place + (places ? spot[first + i] : 0); const float* mine = of_query + i * near;
                    if (places) SIMD for (int j = 0; j < length; j++) score[j] += mine[at[-spot[j]]] + of_key[j * near + at[-spot[j]]];
                    float most = score[0];
                    if (grad) {
                        SIMD_SUM for (int j = 0; j < length; j++)
                            score[j] = fast_exp(score[j] - logsum[token]), along += score[j] * (slope[j] *= drop(index + j));
                        SIMD for (int j = 0; j < length; j++) slope[j] = score[j] * (slope[j] - along), score[j] *= drop(index + j);
                        for (int j = 0; places && j < length; j++)
                            query_slopes[i * near + at[-spot[j]]] += slope[j], key_slopes[j * near + at[-spot[j]]] += slope[j];
                    } else {
                        SIMD_MAX for (int j = 0; j < length; j++) most = score[j] > most ? score[j] : most;
                        SIMD_SUM for (int j = 0; j < length; j++) total += score[j] = fast_exp(score[j] - most);
                        logsum[token] = most + std::log(total), total = 1 / total;
                        SIMD for (int j = 0; j < length; j++) score[j] *= drop(index + j) * total;
                    }
                }
                float* from = grad ? slopes : scores;
                product<T>('N', 'N', count, width, length, from, length, grad ? key : value, width, 0, result + first * width);
                if (places && grad) {
                    product<T>('N', 'N', count, width, near, query_slopes, near, place_key, width, 1, result + first * width);
                    product<T>('T', 'N', near, width, count, query_slopes, near, query + first * width, width, first > 0,
                               place_slopes + table);
                }
                if (!grad) continue;
                product<T>('T', 'N', length, width, count, slopes, length, query + first * width, width, first > 0, result + area);
                product<T>('T', 'N', length, width, count, scores, length, given, width, first > 0, result + 2 * area);
            }
            if (places && grad) {
                product<T>('N', 'N', length, width, near, key_slopes, near, place_query, width, 1, result + area);
                product<T>('T', 'N', near, width, length, key_slopes, near, key, width, 0, place_slopes);
                float* sums = partial + ((size_t)omp_get_thread_num() * num_places + low) * 2 * hidden + head * width;
                for (int part = 0; part < 2; part++)
                    for (int row = 0; row < near; row++)
                        for (int i = 0; i < width; i++)
                            sums[((size_t)row * 2 + part) * hidden + i] += place_slopes[part * table + row * width + i] * (part ? 1 : scale);
            }
            for (int part = 0; part < num_out; part++)
                for (int token = 0; token < length; token++)
                    for (int i = 0; i < width; i++)
                        out[((Int)(start + token) * num_out + part) * hidden + head * width + i] =
                            result[part * area + token * width + i] * (grad && !part ? scale : 1);
        }
}

// For each row of logits: the cross-entropy of its target, the logsumexp, the argmax, and a token sampled from one uniform number.
// `heat` is 1 / temperature; the tokens of `without` are never sampled. Above a temperature of 1 the
// distribution becomes flat, or with `towards`, which may be null, that of these logits.
template <class T> void predict(const T* logits, const float* bias, const Int* targets, const float* uniform, const Int* without,
                                const float* towards, float heat, float* losses, float* logsum, Int* best, Int* sampled, Int rows, Int size,
                                int num_without, int threads) {
    EACH_ROW {
        const T* in = logits + row * size;
        std::vector<float> space(size);
        float *score = space.data(), most = (float)in[0] + bias[0], total = 0, along = 0;
        SIMD_MAX for (Int i = 0; i < size; i++) score[i] = (float)in[i] + bias[i], most = score[i] > most ? score[i] : most;
        best[row] = sampled[row] = -1;  // stays -1 if the logits are NaN
        for (Int i = 0; i < size && best[row] < 0; i++) best[row] = score[i] == most ? i : -1;
        SIMD_SUM for (Int i = 0; i < size; i++) total += fast_exp(score[i] - most);
        logsum[row] = most + std::log(total), losses[row] = most - score[targets[row]] + std::log(total);
        if (towards) {
            most = -INFINITY;
            SIMD for (Int i = 0; i < size; i++) score[i] += towards[i] * (1 / heat - 1);  // divided by the temperature below
        }
        for (int i = 0; i < num_without; i++) score[without[i]] = most = -INFINITY;
        SIMD_MAX for (Int i = 0; i < size; i++) most = score[i] > most ? score[i] : most;
        SIMD_SUM for (Int i = 0; i < size; i++) along += score[i] = fast_exp((score[i] - most) * heat);
        for (int i = 0; i < num_without; i++) score[without[i]] = 0;
        double passed = 0, target = (double)uniform[row] * along;
        for (Int i = 0; i < size && along == along && passed <= target; passed += score[i++])  // if rounding leaves none: the likeliest
            if (passed + score[i] > target || (score[i] == 1 && sampled[row] < 0)) sampled[row] = i;
    }
}

// Overwrites the logits with their gradient; `grad` is that of each row's loss.
template <class T> void predict_back(T* logits, const float* bias, const Int* targets, const float* logsum, const float* grad,
                                     float* partial, Int rows, Int size, int threads) {
    EACH_ROW {
        float *biases = partial + omp_get_thread_num() * size, by = grad[row], sum = logsum[row];
        T *at = logits + row * size, &wanted = at[targets[row]];
        float right = by * (fast_exp((float)wanted + bias[targets[row]] - sum) - 1);
        SIMD for (Int i = 0; i < size; i++) {
            float one = by * fast_exp((float)at[i] + bias[i] - sum);
            at[i] = one, biases[i] += one;
        }
        wanted = right, biases[targets[row]] -= by;
    }
}

// Adds to row r of `out` the gains of the words seen beside token r, a sparse matrix by rows; its original counts once less.
static void add_gains(const Int* tokens, const Int* originals, const Int* starts, const int32_t* words, const float* gains,
                      const float* scales, float weight, float* out, Int rows, Int size, int threads) {
    EACH_ROW {
        for (Int i = starts[tokens[row]]; i < starts[tokens[row] + 1]; i++) {
            float gain = gains[i];
            if (words[i] == originals[row]) gain = weight * std::log1p(std::fmax(std::expm1(gain / weight) - scales[words[i]], 0.0f));
            out[row * size + words[i]] += gain;
        }
    }
}

#define KERNELS(X, Y) (void*)add_norm<X, Y>, (void*)add_norm_back<X, Y>, (void*)gelu<Y, 0, 0, 0>, (void*)gelu<Y, 1, 0, 0>, \
                      (void*)gelu<Y, 0, 1, 0>, (void*)gelu<Y, 1, 1, 0>, (void*)gelu<Y, 0, 1, 1>, (void*)gelu<Y, 1, 1, 1>, \
                      (void*)rotate<Y>, (void*)attention<Y>, (void*)predict<Y>, (void*)predict_back<Y>, (void*)add_gains
extern "C" { void* kernels[] = {KERNELS(float, float), KERNELS(bf16, bf16), KERNELS(float, bf16)}; }
