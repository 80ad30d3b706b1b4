// Stands in for cuBLAS and cuBLASLt: the calls that hgemm makes, on the CPU, refusing arguments that mean something
// else.
//
// Column-major throughout: element (i, j) of a matrix with leading dimension ld lies at i + j * ld.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
static float widen(int type, uint16_t bits) {
  if (type == 14) {
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, 4);
    return x;
  }
  _Float16 x;
  memcpy(&x, &bits, 2);
  return x;
}
static uint16_t narrow(int type, float x) {
  if (type == 14) {
    uint32_t wide;
    memcpy(&wide, &x, 4);
    return (wide + 0x7fff + (wide >> 16 & 1)) >> 16;
  }
  _Float16 y = x;
  uint16_t bits;
  memcpy(&bits, &y, 2);
  return bits;
}
// Element (i, j) of op(A): of A, or of A stored transposed.
static int64_t at(int op, int64_t i, int64_t j, int64_t ld) { return op ? j + i * ld : i + j * ld; }
static int gemm(int type, int ta, int tb, int64_t m, int64_t n, int64_t k, float alpha, const uint16_t* A, int64_t lda,
                const uint16_t* B, int64_t ldb, float beta, uint16_t* C, int64_t ldc) {
  if (lda < (ta ? k : m) || ldb < (tb ? n : k) || ldc < m) return 7;  // CUBLAS_STATUS_INVALID_VALUE
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (int64_t l = 0; l < k; ++l) sum += widen(type, A[at(ta, i, l, lda)]) * widen(type, B[at(tb, l, j, ldb)]);
      C[i + j * ldc] = narrow(type, alpha * sum + (beta ? beta * widen(type, C[i + j * ldc]) : 0));
    }
  return 0;
}
int batched_calls = 0;
const char* cublasGetStatusString(int status) { return status == 7 ? "CUBLAS_STATUS_INVALID_VALUE" : "other"; }
const char* cublasLtGetStatusString(int status) { return cublasGetStatusString(status); }
int cublasGemmEx(void* handle, int ta, int tb, int m, int n, int k, const void* alpha, const void* A, int At, int lda,
                 const void* B, int Bt, int ldb, const void* beta, void* C, int Ct, int ldc, int compute, int algo) {
  if (handle != (void*)0x123456789a || At != Bt || Bt != Ct || compute != 68 || algo != -1) return 13;
  return gemm(At, ta, tb, m, n, k, *(float*)alpha, A, lda, B, ldb, *(float*)beta, C, ldc);
}
int cublasGemmStridedBatchedEx(void* handle, int ta, int tb, int m, int n, int k, const void* alpha, const uint16_t* A,
                               int At, int lda, long long strideA, const uint16_t* B, int Bt, int ldb,
                               long long strideB, const void* beta, uint16_t* C, int Ct, int ldc, long long strideC,
                               int count, int compute, int algo) {
  ++batched_calls;
  for (int i = 0; i < count; ++i) {
    int status = cublasGemmEx(handle, ta, tb, m, n, k, alpha, A + i * strideA, At, lda, B + i * strideB, Bt, ldb, beta,
                              C + i * strideC, Ct, ldc, compute, algo);
    if (status) return status;
  }
  return 0;
}

typedef struct {
  int type;
  uint64_t rows, cols;
  int64_t ld;
  int32_t count;
  int64_t stride;
} Layout;
typedef struct {
  int32_t transposed[2];
} Operation;
typedef struct {
  uint64_t workspace;
  uint32_t schemes, alignment[4];
} Preference;
typedef struct {
  uint64_t data[8];
} Algo;
typedef struct {
  Algo algo;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
} Heuristic;
int objects = 0, proposals = 3;
uint64_t last_algorithm;
Preference last_preference;
size_t sizes[2] = {sizeof(Algo), sizeof(Heuristic)};
int cublasLtMatmulDescCreate(Operation** made, int compute, int scale) {
  if (compute != 68 || scale != 0) return 13;
  ++objects;
  *made = calloc(1, sizeof(Operation));
  return 0;
}
int cublasLtMatmulDescSetAttribute(Operation* operation, int attribute, const void* value, size_t size) {
  if ((attribute != 3 && attribute != 4) || size != 4) return 7;
  memcpy(&operation->transposed[attribute - 3], value, 4);
  return 0;
}
int cublasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value, size_t size) {
  if (attribute == 5 && size == 4)
    memcpy(&layout->count, value, 4);
  else if (attribute == 6 && size == 8)
    memcpy(&layout->stride, value, 8);
  else
    return 7;
  return 0;
}
int cublasLtMatrixLayoutCreate(Layout** made, int type, uint64_t rows, uint64_t cols, int64_t ld) {
  ++objects;
  *made = malloc(sizeof(Layout));
  **made = (Layout){type, rows, cols, ld, 1, 0};
  return 0;
}
int cublasLtMatmulPreferenceCreate(Preference** made) {
  ++objects;
  *made = calloc(1, sizeof(Preference));
  return 0;
}
int cublasLtMatmulDescDestroy(void* x) {
  --objects;
  free(x);
  return 0;
}
int cublasLtMatrixLayoutDestroy(void* x) {
  --objects;
  free(x);
  return 0;
}
int cublasLtMatmulPreferenceDestroy(void* x) {
  --objects;
  free(x);
  return 0;
}
int cublasLtMatmulPreferenceSetAttribute(Preference* p, int attribute, const void* value, size_t size) {
  if (attribute == 1 && size == 8)
    memcpy(&p->workspace, value, 8);
  else if (attribute == 3 && size == 4)
    memcpy(&p->schemes, value, 4);
  else if (attribute >= 5 && attribute <= 8 && size == 4)
    memcpy(&p->alignment[attribute - 5], value, 4);
  else
    return 7;
  return 0;
}
int cublasLtMatmulAlgoGetHeuristic(void* handle, void* op, Layout* A, Layout* B, Layout* C, Layout* D, Preference* p,
                                   int requested, Heuristic* results, int* found) {
  if (handle != (void*)0x123456789a || C != D) return 7;
  last_preference = *p;
  *found = requested < proposals ? requested : proposals;
  for (int i = 0; i < *found; ++i)
    results[i] = (Heuristic){{{100 + i}}, 256 * i, i == 1 ? 15 : 0, 1.0f, {0}};  // the second one is not usable
  return *found ? 0 : 15;
}
int cublasLtMatmul(void* handle, Operation* op, const void* alpha, const uint16_t* A, Layout* a, const uint16_t* B,
                   Layout* b, const void* beta, const uint16_t* C, Layout* c, uint16_t* D, Layout* d, const Algo* algo,
                   void* workspace, size_t size, void* stream) {
  if (handle != (void*)0x123456789a || stream != (void*)0xfedcba987 || C != D || c != d) return 13;
  const int ta = op->transposed[0], tb = op->transposed[1];
  const uint64_t m = ta ? a->cols : a->rows, k = ta ? a->rows : a->cols, n = tb ? b->rows : b->cols;
  if (k != (tb ? b->cols : b->rows) || m != d->rows || n != d->cols) return 7;
  if (a->count != d->count || b->count != d->count) return 7;
  if ((size != 0) != (workspace != 0) || size != 256 * (algo->data[0] - 100)) return 8;
  last_algorithm = algo->data[0];
  for (int i = 0; i < d->count; ++i) {
    int status = gemm(a->type, ta, tb, m, n, k, *(float*)alpha, A + i * a->stride, a->ld, B + i * b->stride, b->ld,
                      *(float*)beta, D + i * d->stride, d->ld);
    if (status) return status;
  }
  return 0;
}
