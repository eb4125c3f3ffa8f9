// SPDX-License-Identifier: Apache-2.0
//
// Data sets from files: the elements of good files, and the errors of malformed ones. Each row of a
// table is a file by its bytes.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/host_array.h"
#include "base/shape.h"
#include "gmock/gmock-matchers.h"
#include "gmock/gmock-more-matchers.h"
#include "gtest/gtest.h"
#include "input/batch_reader.h"
#include "input/dataset.h"
#include "input/input_file.h"
#include "tests/support/leaks.h"
#include "tests/support/matchers.h"

namespace tessera::input {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::IsOk;
using ::testing::Optional;
using testing::StatusIs;

// Writes a file for this test.
std::string write_file(absl::string_view name, absl::string_view bytes) {
  const char* const folder = std::getenv("TEST_TMPDIR");
  const std::string path = absl::StrCat(folder == nullptr ? "/tmp" : folder, "/", name);
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  EXPECT_TRUE(file.good()) << path;
  return path;
}

// A text with zeros in it.
template <size_t kSize>
std::string bytes_of(const char (&text)[kSize]) {
  return std::string(text, kSize - 1);
}

// A .npy file of version 1.
std::string npy_of(absl::string_view header, absl::string_view data) {
  const std::string padded = absl::StrCat(header, "\n");
  std::string bytes = bytes_of("\x93NUMPY\x01\x00");
  bytes.push_back(static_cast<char>(padded.size() & 0xff));
  bytes.push_back(static_cast<char>(padded.size() >> 8));
  return absl::StrCat(bytes, padded, data);
}

// All elements, or the first error.
StatusOr<std::vector<Element>> read_all(const StatusOr<Dataset>& dataset) {
  TESSERA_RETURN_IF_ERROR(dataset);
  TESSERA_ASSIGN_OR_RETURN(HostIterator iterator, dataset->iterate());
  std::vector<Element> elements;
  for (;;) {
    TESSERA_ASSIGN_OR_RETURN(std::optional<Element> element, iterator.next());
    if (!element.has_value()) return elements;
    elements.push_back(*std::move(element));
  }
}

// Good files.

TEST(NpyTest, ElementsAreTheRows) {
  const std::string path = write_file(
      "rows.npy", npy_of("{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }",
                         bytes_of("\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0\5\0\0\0\xff\xff\xff\xff")));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Dataset dataset, Dataset::npy(path));
  EXPECT_THAT(dataset.element_spec(), ElementsAre(TensorSpec{DType::kInt32, {3}}));
  EXPECT_THAT(dataset.cardinality(), Optional(2));
  EXPECT_THAT(dataset.files(), ElementsAre(path));
  EXPECT_THAT(read_all(dataset), testing::IsOkAndHolds(ElementsAre(
                                     ElementsAre(HostArray::of<int32_t>({1, 2, 3}, {3})),
                                     ElementsAre(HostArray::of<int32_t>({4, 5, -1}, {3})))));
}

TEST(NpyTest, EveryVersionTypeAndByteOrder) {
  struct Case {
    const char* name;
    const char* descr;
    std::string data;
    HostArray element;
  };
  const Case cases[] = {
      {"bool", "|b1", bytes_of("\1"), HostArray::scalar<bool>(true)},
      {"i1", "|i1", bytes_of("\xfe"), HostArray::scalar<int8_t>(-2)},
      {"u1", "|u1", bytes_of("\xfe"), HostArray::scalar<uint8_t>(254)},
      {"i4", ">i4", bytes_of("\0\0\1\2"), HostArray::scalar<int32_t>(258)},
      {"i8", "<i8", bytes_of("\2\1\0\0\0\0\0\0"), HostArray::scalar<int64_t>(258)},
      {"f2", "<f2", bytes_of("\0\x3c"), {DType::kFloat16, {}, {std::byte{0}, std::byte{0x3c}}}},
      {"f4", ">f4", bytes_of("\x3f\x80\0\0"), HostArray::scalar<float>(1)},
      {"f8", "=f8", bytes_of("\0\0\0\0\0\0\xf0\x3f"), HostArray::scalar<double>(1)},
  };
  for (const Case& row : cases) {
    const std::string header =
        absl::StrCat("{'shape':(1,),'descr':'", row.descr, "','fortran_order':False}");
    for (const char version : {1, 2, 3}) {
      SCOPED_TRACE(absl::StrCat(row.name, " version ", static_cast<int>(version)));
      std::string bytes = npy_of(header, row.data);
      bytes[6] = version;
      if (version > 1) bytes.insert(10, 2, '\0');  // the length has 4 bytes
      EXPECT_THAT(read_all(Dataset::npy(write_file("type.npy", bytes))),
                  testing::IsOkAndHolds(ElementsAre(ElementsAre(row.element))));
    }
  }
}

// numpy.save may put several arrays into one file: bytes after the array are not looked at.
TEST(NpyTest, TheFirstArrayOfAFile) {
  const std::string bytes =
      npy_of("{'descr': '|u1', 'fortran_order': False, 'shape': (2,), }", "ab\x93NUMPY");
  EXPECT_THAT(read_all(Dataset::npy(write_file("two.npy", bytes))),
              testing::IsOkAndHolds(ElementsAre(ElementsAre(HostArray::scalar<uint8_t>('a')),
                                                ElementsAre(HostArray::scalar<uint8_t>('b')))));
}

// The numbers of an array of this shape in C or Fortran order, each as NumPy counts it.
std::vector<int32_t> numbers_of(const std::vector<int64_t>& shape, bool is_fortran) {
  std::vector<int32_t> numbers(num_elements(shape));
  std::vector<int64_t> place(shape.size(), 0);
  for (int32_t row_major = 0; row_major < static_cast<int32_t>(numbers.size()); ++row_major) {
    int64_t at = 0;
    for (size_t i = 0; i < shape.size(); ++i) {
      const size_t dim = is_fortran ? shape.size() - 1 - i : i;
      at = at * shape[dim] + place[dim];
    }
    numbers[at] = row_major;
    for (size_t dim = shape.size(); dim-- > 0 && ++place[dim] == shape[dim];) place[dim] = 0;
  }
  return numbers;
}

std::string array_file(const std::string& name, const std::vector<int64_t>& shape, bool is_fortran,
                       bool is_big_endian = false) {
  std::string data;
  for (const int32_t number : numbers_of(shape, is_fortran)) {
    for (int i = 0; i < 4; ++i) {
      data.push_back(static_cast<char>(number >> (is_big_endian ? 24 - 8 * i : 8 * i) & 0xff));
    }
  }
  return write_file(name,
                    npy_of(absl::StrCat("{'descr': '", is_big_endian ? ">" : "<",
                                        "i4', 'fortran_order': ", is_fortran ? "True" : "False",
                                        ", 'shape': (", absl::StrJoin(shape, ","), ",)}"),
                           data));
}

// Reads consecutive elements, which come from blocks, and other orders, by one thread and by
// several.
TEST(NpyTest, FortranOrderHasTheElementsOfTheOtherOrder) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{5},
                                            {1},
                                            {0, 3},
                                            {3, 0},
                                            {3, 0, 2},
                                            {1, 1},
                                            {4, 3},
                                            {3, 4},
                                            {2, 3, 4},
                                            {5, 1, 2, 3},
                                            {3000, 2},
                                            {2500, 2, 3}}) {
    for (const bool is_big_endian : {false, true}) {
      SCOPED_TRACE(absl::StrJoin(shape, ","));
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const Dataset rows, Dataset::npy(array_file("rows.npy", shape, false, is_big_endian)));
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const Dataset columns,
          Dataset::npy(array_file("columns.npy", shape, true, is_big_endian)));
      EXPECT_EQ(columns.element_spec(), rows.element_spec());
      EXPECT_EQ(columns.cardinality(), rows.cardinality());
      const auto same = [](Element element) -> StatusOr<Element> { return element; };
      const std::pair<Dataset, Dataset> orders[] = {
          {columns, rows},
          {columns.shuffle(1), rows.shuffle(1)},
          {columns.shard(3, 1), rows.shard(3, 1)},
          {columns.skip(1).repeat(2).map(same, 4), rows.skip(1).repeat(2)},
      };
      for (const auto& [of_columns, of_rows] : orders) {
        TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Element> expected, read_all(of_rows));
        TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Element> read, read_all(of_columns));
        ASSERT_TRUE(read == expected);
      }
    }
  }
}

TEST(IdxTest, ElementsAreTheImages) {
  const std::string images =
      write_file("images.idx", bytes_of("\0\0\x08\3\0\0\0\2\0\0\0\1\0\0\0\2\1\2\3\4"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Dataset dataset, Dataset::idx(images));
  EXPECT_THAT(dataset.element_spec(), ElementsAre(TensorSpec{DType::kUint8, {1, 2}}));
  EXPECT_THAT(read_all(dataset), testing::IsOkAndHolds(ElementsAre(
                                     ElementsAre(HostArray::of<uint8_t>({1, 2}, {1, 2})),
                                     ElementsAre(HostArray::of<uint8_t>({3, 4}, {1, 2})))));
  const std::string floats = write_file("floats.idx", bytes_of("\0\0\x0d\1\0\0\0\1\x3f\x80\0\0"));
  EXPECT_THAT(read_all(Dataset::idx(floats)),
              testing::IsOkAndHolds(ElementsAre(ElementsAre(HostArray::scalar<float>(1)))));
}

TEST(CsvTest, ElementsAreTheLines) {
  const std::string a = write_file("a.csv", "x,y,z\r\n1,2.5,true\r\n-3,\"1e-3\",0\r\n");
  const std::string b = write_file("b.csv", "x,y,z\n 7 ,+.5,1");
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Dataset dataset,
      Dataset::csv({a, b}, {DType::kInt32, DType::kFloat32, DType::kBool}, {.skip_lines = 1}));
  EXPECT_THAT(dataset.cardinality(), Optional(3));
  EXPECT_THAT(
      read_all(dataset),
      testing::IsOkAndHolds(ElementsAre(
          ElementsAre(HostArray::scalar(1), HostArray::scalar(2.5f), HostArray::scalar(true)),
          ElementsAre(HostArray::scalar(-3), HostArray::scalar(1e-3f), HostArray::scalar(false)),
          ElementsAre(HostArray::scalar(7), HostArray::scalar(.5f), HostArray::scalar(true)))));
}

// miller#161: the mark does not belong to the first line, even if that line is skipped.
TEST(CsvTest, AByteOrderMarkIsNoPartOfTheFirstLine) {
  const std::string a = write_file("marked.csv",
                                   "\xef\xbb\xbf"
                                   "1,2.5\n3,4.5\n");
  const std::string b = write_file("plain.csv", "5,6.5\n");
  const auto row = [](int32_t x, float y) {
    return ElementsAre(HostArray::scalar(x), HostArray::scalar(y));
  };
  EXPECT_THAT(read_all(Dataset::csv({a, b, a}, {DType::kInt32, DType::kFloat32})),
              testing::IsOkAndHolds(
                  ElementsAre(row(1, 2.5), row(3, 4.5), row(5, 6.5), row(1, 2.5), row(3, 4.5))));
  EXPECT_THAT(read_all(Dataset::csv({a}, {DType::kInt32, DType::kFloat32}, {.skip_lines = 1})),
              testing::IsOkAndHolds(ElementsAre(row(3, 4.5))));
  EXPECT_THAT(read_all(Dataset::csv({write_file("quoted.csv", "\xef\xbb\xbf\"1\",2.5")},
                                    {DType::kInt32, DType::kFloat32})),
              testing::IsOkAndHolds(ElementsAre(row(1, 2.5))));
}

TEST(TextTest, AByteOrderMarkIsNoPartOfTheFirstLine) {
  const auto line = [](absl::string_view text) {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(text.data());
    return ElementsAre(HostArray::of<uint8_t>(absl::MakeConstSpan(bytes, text.size()),
                                              {static_cast<int64_t>(text.size())}));
  };
  const std::string marked = write_file("marked.txt",
                                        "\xef\xbb\xbf"
                                        "a\n\xef\xbb\xbf"
                                        "b");
  EXPECT_THAT(read_all(Dataset::text_lines({marked})),
              testing::IsOkAndHolds(ElementsAre(line("a"), line("\xef\xbb\xbf"
                                                                "b"))));
  EXPECT_THAT(read_all(Dataset::text_lines({write_file("mark.txt", "\xef\xbb\xbf")})),
              testing::IsOkAndHolds(IsEmpty()));
}

TEST(CsvTest, EveryTypeAtItsLimits) {
  const std::string path = write_file(
      "limits.csv", "-128,255,-2147483648,9223372036854775807,65504,1.5,3.4028235e38,1e308\n");
  const std::vector<DType> columns = {DType::kInt8,    DType::kUint8,   DType::kInt32,
                                      DType::kInt64,   DType::kFloat16, DType::kBFloat16,
                                      DType::kFloat32, DType::kFloat64};
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Element> lines,
                               read_all(Dataset::csv({path}, columns)));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0][0], HostArray::scalar<int8_t>(-128));
  EXPECT_EQ(lines[0][1], HostArray::scalar<uint8_t>(255));
  EXPECT_EQ(lines[0][2], HostArray::scalar<int32_t>(INT32_MIN));
  EXPECT_EQ(lines[0][3], HostArray::scalar<int64_t>(INT64_MAX));
  EXPECT_THAT(lines[0][4].bytes, ElementsAre(std::byte{0xff}, std::byte{0x7b}));
  EXPECT_THAT(lines[0][5].bytes, ElementsAre(std::byte{0xc0}, std::byte{0x3f}));
  EXPECT_EQ(lines[0][6], HostArray::scalar<float>(3.4028235e38f));
  EXPECT_EQ(lines[0][7], HostArray::scalar<double>(1e308));
}

// Half types are rounded once. Rounded to f32 first, these numbers would become halfway cases.
TEST(CsvTest, HalvesAreRoundedOnce) {
  const std::string path =
      write_file("halves.csv", "1.000488281251,1.003906250001\n65519.999999,1.00390625\n");
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Element> lines,
                               read_all(Dataset::csv({path}, {DType::kFloat16, DType::kBFloat16})));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[0][0].bytes, ElementsAre(std::byte{0x01}, std::byte{0x3c}));
  EXPECT_THAT(lines[0][1].bytes, ElementsAre(std::byte{0x81}, std::byte{0x3f}));
  EXPECT_THAT(lines[1][0].bytes, ElementsAre(std::byte{0xff}, std::byte{0x7b}));
  EXPECT_THAT(lines[1][1].bytes, ElementsAre(std::byte{0x80}, std::byte{0x3f}));
}

TEST(TextTest, ElementsAreTheLines) {
  // The second file is empty; the last line has no newline, and one is longer than a block.
  const std::string long_line(300000, 'x');
  const std::string a = write_file("a.txt", absl::StrCat("one\n\ntwo\r\n", long_line, "\n"));
  const std::string b = write_file("b.txt", "");
  const std::string c = write_file("c.txt", "end");
  TESSERA_ASSERT_OK_AND_ASSIGN(const Dataset dataset, Dataset::text_lines({a, b, c}));
  EXPECT_THAT(dataset.element_spec(), ElementsAre(TensorSpec{DType::kUint8, {-1}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Element> lines, read_all(dataset));
  std::vector<std::string> texts;
  for (const Element& line : lines) {
    const absl::Span<const uint8_t> view = line[0].view<uint8_t>();
    texts.emplace_back(view.begin(), view.end());
  }
  EXPECT_THAT(texts, ElementsAre("one", "", "two", long_line, "end"));
}

TEST(RecordsTest, ElementsAreTheRecordsOfAllFiles) {
  const std::string a = write_file("a.bin", "aabb");
  const std::string b = write_file("b.bin", "");
  const std::string c = write_file("c.bin", "cc");
  TESSERA_ASSERT_OK_AND_ASSIGN(const Dataset dataset, Dataset::fixed_records({a, b, c}, 2));
  EXPECT_THAT(dataset.cardinality(), Optional(3));
  EXPECT_THAT(dataset.files(), ElementsAre(a, b, c));
  EXPECT_THAT(read_all(dataset), testing::IsOkAndHolds(ElementsAre(
                                     ElementsAre(HostArray::of<uint8_t>({'a', 'a'}, {2})),
                                     ElementsAre(HostArray::of<uint8_t>({'b', 'b'}, {2})),
                                     ElementsAre(HostArray::of<uint8_t>({'c', 'c'}, {2})))));
}

// Each record holds its number. Reads consecutive records, which come from blocks, and other
// orders, by one thread and by several.
TEST(RecordsTest, ReadInAnyOrder) {
  constexpr int64_t kRecords = 20000;
  std::string bytes;
  for (int64_t i = 0; i < kRecords; ++i) {
    bytes.append(reinterpret_cast<const char*>(&i), sizeof i);
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const Dataset records,
                               Dataset::fixed_records({write_file("numbers", bytes)}, 8));
  const auto number = [](Element element) -> StatusOr<Element> {
    element[0].dtype = DType::kInt64;
    element[0].shape = {};
    return element;
  };
  const Dataset range = Dataset::range(kRecords);
  const std::pair<Dataset, Dataset> orders[] = {
      {records, range},
      {records.shuffle(1), range.shuffle(1)},
      {records.shard(3, 1), range.shard(3, 1)},
      {records.skip(7).repeat(2), range.skip(7).repeat(2)},
  };
  for (const auto& [of_file, of_range] : orders) {
    for (const int parallelism : {1, 4}) {
      TESSERA_ASSERT_OK_AND_ASSIGN(HostIterator read,
                                   of_file.map(number, parallelism).batch(1000).iterate());
      TESSERA_ASSERT_OK_AND_ASSIGN(HostIterator expected, of_range.batch(1000).iterate());
      for (bool ended = false; !ended;) {
        TESSERA_ASSERT_OK_AND_ASSIGN(const std::optional<Element> batch, read.next());
        TESSERA_ASSERT_OK_AND_ASSIGN(const std::optional<Element> numbers, expected.next());
        ASSERT_TRUE(batch == numbers);
        ended = !batch.has_value();
      }
    }
  }
}

// The number of system calls that have read for this thread.
int64_t num_reads() {
  std::ifstream counts("/proc/thread-self/io");
  std::string name;
  for (int64_t count = 0; counts >> name >> count;) {
    if (name == "syscr:") return count;
  }
  return -1;
}

// The order of reads -> system calls for 10,000 records of 8 bytes.
TEST(RecordsTest, ReadsNearEachOtherShareSystemCalls) {
  constexpr int64_t kRecords = 10000;
  const std::string path = write_file("near", std::string(8 * kRecords, 'x'));
  const std::function<int64_t(int64_t)> in_a_row = [](int64_t i) { return i; };
  const std::function<int64_t(int64_t)> in_swapped_pairs = [](int64_t i) { return i ^ 1; };
  const std::function<int64_t(int64_t)> every_third = [](int64_t i) { return 3 * i % kRecords; };
  const std::function<int64_t(int64_t)> far_away = [](int64_t i) { return 3001 * i % kRecords; };
  for (const auto& [order, fewest, most] :
       {std::tuple(in_a_row, 1, 25), std::tuple(in_swapped_pairs, 1, 25),
        std::tuple(every_third, 1, 75), std::tuple(far_away, 9000, 10100)}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::shared_ptr<const InputFile> file,
                                 InputFile::open(path));
    const int64_t before = num_reads();
    std::byte record[8];
    for (int64_t i = 0; i < kRecords; ++i) {
      ASSERT_THAT(file->read(8 * order(i), absl::MakeSpan(record), [] { return ""; }), IsOk());
    }
    const int64_t reads = num_reads() - before;
    EXPECT_GE(reads, fewest);
    EXPECT_LE(reads, most);
  }
}

// A data set over some of its files, as a shard of a job has, keeps its operations.
TEST(FilesTest, ADataSetOverSomeOfItsFiles) {
  std::vector<std::string> texts, records;
  for (int i = 0; i < 5; ++i) {
    texts.push_back(write_file(absl::StrCat("part", i), absl::StrCat(i, "\n", i, "5\n")));
    records.push_back(write_file(absl::StrCat("part", i, ".bin"), absl::StrCat(i, i + 1)));
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const Dataset csv, Dataset::csv(texts, {DType::kInt64}));
  const auto twice = [](Element element) -> StatusOr<Element> {
    element[0].view<int64_t>()[0] *= 2;
    return element;
  };
  const auto all = [](const Element&) -> StatusOr<bool> { return true; };
  const Dataset whole =
      csv.map(twice).cache().shuffle(1).take(9).skip(1).shard(1, 0).filter(all).repeat(1).batch(1);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Dataset some, internal::with_files(whole, {1, 3}));
  EXPECT_THAT(some.files(), ElementsAre(texts[1], texts[3]));
  EXPECT_THAT(read_all(some), testing::IsOkAndHolds(::testing::SizeIs(3)));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Dataset bare, internal::with_files(csv, {1, 3}));
  EXPECT_THAT(read_all(bare),
              testing::IsOkAndHolds(ElementsAre(ElementsAre(HostArray::scalar<int64_t>(1)),
                                                ElementsAre(HostArray::scalar<int64_t>(15)),
                                                ElementsAre(HostArray::scalar<int64_t>(3)),
                                                ElementsAre(HostArray::scalar<int64_t>(35)))));
  // Their states do not fit the whole data set.
  TESSERA_ASSERT_OK_AND_ASSIGN(HostIterator iterator, bare.iterate());
  EXPECT_THAT(csv.iterate(iterator.state()), StatusIs(StatusCode::kInvalidArgument));

  TESSERA_ASSERT_OK_AND_ASSIGN(const Dataset fixed, Dataset::fixed_records(records, 1));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Dataset last, internal::with_files(fixed, {4}));
  EXPECT_THAT(read_all(last),
              testing::IsOkAndHolds(ElementsAre(ElementsAre(HostArray::of<uint8_t>({'4'}, {1})),
                                                ElementsAre(HostArray::of<uint8_t>({'5'}, {1})))));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Dataset lines, Dataset::text_lines(texts));
  EXPECT_THAT(internal::with_files(lines, {0}), IsOk());
  EXPECT_THAT(internal::with_files(Dataset::range(3), {0}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("has no files")));
  const std::string array = write_file(
      "one.npy", npy_of("{'descr': '|u1', 'fortran_order': False, 'shape': (1,), }", "x"));
  EXPECT_THAT(internal::with_files(*Dataset::npy(array), {0}), IsOk());
  EXPECT_THAT(internal::with_files(*Dataset::npy(array), {}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("is the one file")));
}

TEST(FilesTest, DescriptorsCloseWithTheDataSet) {
  const std::string path = write_file("records", "abcdef");
  const int64_t before = testing::current_holdings().descriptors;
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Dataset dataset, Dataset::fixed_records({path}, 2));
    ASSERT_THAT(read_all(dataset), IsOk());
  }
  EXPECT_EQ(testing::current_holdings().descriptors, before);
}

// A file that is truncated while it is used.
TEST(FilesTest, AFileThatHasBecomeShorter) {
  const std::string path = write_file("shrinks", "abcdef");
  TESSERA_ASSERT_OK_AND_ASSIGN(const Dataset dataset, Dataset::fixed_records({path}, 2));
  write_file("shrinks", "abc");
  EXPECT_THAT(read_all(dataset),
              StatusIs(StatusCode::kDataLoss,
                       AllOf(HasSubstr("element 1 of epoch 0: "), HasSubstr(path),
                             HasSubstr("record 1 is bytes 2 to 4, and the file ends at 3; it had 6 "
                                       "bytes when it was opened"))));
}

// Malformed files. A message names the file.

using Make = std::function<StatusOr<Dataset>(const std::string& path)>;
StatusOr<Dataset> npy(const std::string& path) { return Dataset::npy(path); }
StatusOr<Dataset> idx(const std::string& path) { return Dataset::idx(path); }
StatusOr<Dataset> records(const std::string& path) { return Dataset::fixed_records({path}, 4); }
template <DType... kColumns>
StatusOr<Dataset> csv(const std::string& path) {
  return Dataset::csv({path}, {kColumns...});
}
template <int64_t kLines>
StatusOr<Dataset> csv_after(const std::string& path) {
  return Dataset::csv({path}, {DType::kInt64}, {.skip_lines = kLines});
}

struct MalformedCase {
  const char* name;
  Make make;
  std::string bytes;
  const char* message;
  StatusCode code = StatusCode::kInvalidArgument;
};
constexpr char kGoodNpy[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }";

const MalformedCase kMalformed[] = {
    {"npy_empty_file", npy, "", "it has 0 bytes, which end before the length of its header does",
     StatusCode::kDataLoss},
    {"npy_wrong_magic", npy, "PK\3\4" + std::string(100, 'x'),
     "it is not a .npy file: it does not begin with"},
    {"npy_version", npy, bytes_of("\x93NUMPY\4\0\1\0\1\0"),
     "it has version 4.0 of the .npy format; 1.0, 2.0 and 3.0 are known",
     StatusCode::kUnimplemented},
    {"npy_unknown_key", npy, npy_of("{'color': 'red'}", ""), "its header has the key \"color\""},
    {"npy_wrong_type", npy, npy_of("{'descr': '<c8', 'fortran_order': False, 'shape': (2,)}", ""),
     "its element type is \"<c8\" (complex f32); types are b1, i1, u1, i4, i8, f2, f4 and f8, "
     "after <, >, =, | or nothing",
     StatusCode::kUnimplemented},
    {"npy_scalar", npy, npy_of("{'descr': '<f4', 'fortran_order': False, 'shape': ()}", "abcd"),
     "its array is a scalar"},
    {"npy_data_truncated", npy, npy_of(kGoodNpy, "1234567"),
     "its array f32 [2] takes 8 bytes, and 7 are there: the file was cut off",
     StatusCode::kDataLoss},
    {"npy_fortran_truncated", npy,
     npy_of("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 2)}", "123"),
     "its array u8 [2, 2] takes 4 bytes, and 3 are there", StatusCode::kDataLoss},
    {"npy_bool_of_2", npy,
     npy_of("{'descr': '|b1', 'fortran_order': False, 'shape': (2,)}", bytes_of("\1\2")),
     "element 1 has the byte 2 where a bool is 0 or 1"},

    {"idx_empty_file", idx, "", "it ends in the header"},
    {"idx_wrong_magic", idx, "\x1f\x8b\x08\x08 gzip",
     "it is not an IDX file: it does not begin with two zero bytes"},
    {"idx_wrong_type", idx, bytes_of("\0\0\x0b\1\0\0\0\0"), "its element type is 0x0b; supported"},
    {"idx_header_truncated", idx, bytes_of("\0\0\x08\3\0\0\0\1"), "it ends in the header"},
    {"idx_scalar", idx, bytes_of("\0\0\x08\0x"), "its array is a scalar"},
    {"idx_data_truncated", idx, bytes_of("\0\0\x08\1\0\0\0\5abcd"),
     "its array u8 [5] after 8 bytes of header makes 13 bytes, and the file has 12"},
    {"idx_data_too_long", idx, bytes_of("\0\0\x08\1\0\0\0\5abcdef"), "and the file has 14"},
    {"idx_overflow", idx, bytes_of("\0\0\x08\3\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
     "shape [4294967295"},

    {"csv_empty_file", csv<DType::kInt64>, "", "it is empty"},
    {"csv_only_a_mark", csv<DType::kInt64>, "\xef\xbb\xbf", "it is empty"},
    {"csv_two_marks", csv<DType::kInt64>,
     "\xef\xbb\xbf\xef\xbb\xbf"
     "1\n",
     "line 1, column 1: \"\\xef\\xbb\\xbf1\" is not a value of i64"},
    {"csv_hidden_blank", csv<DType::kInt64>,
     "1\n\xc2\xa0"
     "2\n",
     "line 2, column 1: \"\\xc2\\xa02\" is not a value of i64"},
    {"csv_utf16", csv<DType::kInt64>,
     bytes_of("\xff\xfe"
              "1\0\n\0"),
     "its text is UTF-16, by its byte order mark; save it as UTF-8"},
    {"csv_utf16_big", csv<DType::kInt64>,
     bytes_of("\xfe\xff\0"
              "1\0\n"),
     "its text is UTF-16"},
    {"csv_utf32", csv<DType::kInt64>,
     bytes_of("\xff\xfe\0\0"
              "1\0\0\0"),
     "its text is UTF-32"},
    {"csv_zeros", csv<DType::kInt64>, bytes_of("1\0\n"),
     "line 1, column 1: \"1\\x00\" is not a value of i64"},
    {"csv_missing_column", csv<DType::kInt64, DType::kInt64>, "1,2\n3\n",
     "line 2, it has 1 columns, not 2"},
    {"csv_too_many_columns", csv<DType::kInt64>, "1\n2,x\n", "line 2, it has 2 columns, not 1"},
    {"csv_blank_line", csv<DType::kInt64>, "1\n\n2\n",
     "line 2, column 1: \"\" is not a value of i64"},
    {"csv_text", csv<DType::kInt64, DType::kFloat32>, "1,abc\n",
     "line 1, column 2: \"abc\" is not a finite value of f32"},
    {"csv_nan_text", csv<DType::kFloat64>, "nan\n",
     "column 1: \"nan\" is not a finite value of f64"},
    {"csv_infinity", csv<DType::kFloat32>, "inf\n",
     "column 1: \"inf\" is not a finite value of f32"},
    {"csv_f32_overflow", csv<DType::kFloat32>, "1e39\n",
     "column 1: \"1e39\" is not a finite value of f32"},
    {"csv_f64_overflow", csv<DType::kFloat64>, "1e309\n",
     "column 1: \"1e309\" is not a finite value of f64"},
    {"csv_f16_overflow", csv<DType::kFloat16>, "70000\n",
     "column 1: \"70000\" is not a finite value of f16"},
    {"csv_i8_overflow", csv<DType::kInt8>, "128\n", "column 1: \"128\" is not a value of i8"},
    {"csv_u8_negative", csv<DType::kUint8>, "-1\n", "column 1: \"-1\" is not a value of u8"},
    {"csv_i32_overflow", csv<DType::kInt32>, "2147483648\n",
     "\"2147483648\" is not a value of i32"},
    {"csv_i64_overflow", csv<DType::kInt64>, "9223372036854775808\n", "is not a value of i64"},
    {"csv_fraction", csv<DType::kInt64>, "1.5\n", "column 1: \"1.5\" is not a value of i64"},
    {"csv_bool", csv<DType::kBool>, "yes\n", "column 1: \"yes\" is not a value of bool"},
    {"csv_quote_not_closed", csv<DType::kInt64>, "\"1\n2\"\n",
     "line 1, column 1: a quote that is not closed in this line"},
    {"csv_text_after_quote", csv<DType::kInt64>, "\"1\"2\n",
     "column 1: text after a closing quote"},
    {"csv_quote_inside", csv<DType::kInt64>, "1\"2\n",
     "column 1: a quote inside a field that does not begin with one"},
    {"csv_doubled_quote", csv<DType::kInt64>, "\"1\"\"\"\n",
     "column 1: \"1\\\"\" is not a value of i64"},
    {"csv_line_of_a_skipped_header", csv_after<1>, "x\n1\ny\n", "line 3, column 1: \"y\""},
    {"csv_fewer_lines_than_skipped", csv_after<3>, "x\n1\n", "it has 2 lines; 3 are to be skipped"},

    {"records_truncated", records, "aaaabb", "record 1 has 2 of 4 bytes: the file ends in it"},
};

TEST(MalformedTest, NamesTheFileAndThePlace) {
  for (const MalformedCase& row : kMalformed) {
    SCOPED_TRACE(row.name);
    const std::string path = write_file(row.name, row.bytes);
    EXPECT_THAT(read_all(row.make(path)),
                StatusIs(row.code, AllOf(HasSubstr(absl::StrCat("file \"", path, "\": ")),
                                         HasSubstr(row.message))));
  }
}

TEST(MalformedTest, FilesThatAreNone) {
  const std::string folder = std::getenv("TEST_TMPDIR");
  for (const Make& make :
       {Make(npy), Make(idx), Make(csv<DType::kInt64>), Make(records),
        Make([](const std::string& path) { return Dataset::text_lines({path}); })}) {
    EXPECT_THAT(make(folder + "/missing_file"),
                StatusIs(StatusCode::kNotFound,
                         AllOf(HasSubstr("cannot open file"), HasSubstr("missing_file"))));
    EXPECT_THAT(make(folder),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("it is not a regular file")));
  }
}

TEST(MalformedTest, WrongArguments) {
  const std::string path = write_file("good.csv", "1\n");
  struct Case {
    const char* name;
    StatusOr<Dataset> dataset;
    const char* message;
  };
  const Case cases[] = {
      {"no_text_files", Dataset::text_lines({}), "the list of files is empty"},
      {"no_record_files", Dataset::fixed_records({}, 1), "the list of files is empty"},
      {"no_csv_files", Dataset::csv({}, {DType::kInt64}), "the list of files is empty"},
      {"no_columns", Dataset::csv({path}, {}), "csv: no columns are given"},
      {"no_dtype", Dataset::csv({path}, {static_cast<DType>(77)}), "DType(77)"},
      {"skip_lines", Dataset::csv({path}, {DType::kInt64}, {.skip_lines = -1}),
       "csv: skip_lines is -1"},
      {"record_bytes", Dataset::fixed_records({path}, 0), "fixed_records: a record has 0 bytes"},
  };
  for (const Case& row : cases) {
    SCOPED_TRACE(row.name);
    EXPECT_THAT(row.dataset, StatusIs(StatusCode::kInvalidArgument, HasSubstr(row.message)));
  }
}

}  // namespace
}  // namespace tessera::input
