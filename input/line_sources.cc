// SPDX-License-Identifier: Apache-2.0
//
// Sources of files whose elements are lines: text, and CSV by RFC 4180 with numbers as fields.
//
// A UTF-8 byte order mark at the front of a file does not belong to its first line.
//
// The positions of lines are found in one pass over the files when the source is made, and take 8
// bytes of memory per line. Each line is then read alone.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "Eigen/Core"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/stable_hash.h"
#include "base/text.h"
#include "device/number_math.h"
#include "input/file_sources.h"
#include "input/input_file.h"

namespace tessera::input::internal {
namespace {

// The lines of one file. A last line without a newline counts unless it is empty.
struct LinesOfFile {
  std::shared_ptr<const InputFile> file;
  int64_t first_line = 0;       // lines before it are not elements
  std::vector<int64_t> starts;  // of each line from first_line on, then the end of the last
  int64_t size() const { return static_cast<int64_t>(starts.size()) - 1; }
};
using Lines = std::vector<std::shared_ptr<const LinesOfFile>>;

constexpr absl::string_view kUtf8Mark = "\xEF\xBB\xBF";

// The offset of the first line: after the byte order mark. InvalidArgument for UTF-16 and UTF-32,
// whose line ends and digits are not single bytes.
StatusOr<int64_t> front_of(const InputFile& file) {
  TESSERA_ASSIGN_OR_RETURN(const std::string front, file.read_front(4));
  for (const auto& [mark, name] : {std::pair(absl::string_view("\xFF\xFE\0\0", 4), "UTF-32"),
                                   std::pair(absl::string_view("\0\0\xFE\xFF", 4), "UTF-32"),
                                   std::pair(absl::string_view("\xFF\xFE"), "UTF-16"),
                                   std::pair(absl::string_view("\xFE\xFF"), "UTF-16")}) {
    if (!absl::StartsWith(front, mark)) continue;
    return file.error(
        absl::StrCat("its text is ", name, ", by its byte order mark; save it as UTF-8"));
  }
  return absl::StartsWith(front, kUtf8Mark) ? static_cast<int64_t>(kUtf8Mark.size()) : 0;
}

StatusOr<std::shared_ptr<const LinesOfFile>> find_lines(std::shared_ptr<const InputFile> file,
                                                        int64_t skip_lines) {
  constexpr int64_t kBlockBytes = 1 << 18;
  auto lines = std::make_shared<LinesOfFile>();
  lines->file = file;
  lines->first_line = skip_lines;
  std::vector<std::byte> block(static_cast<size_t>(std::min(kBlockBytes, file->size())));
  int64_t line = 0;
  TESSERA_ASSIGN_OR_RETURN(int64_t line_start, front_of(*file));
  for (int64_t offset = 0; offset < file->size(); offset += kBlockBytes) {
    const auto count = static_cast<size_t>(std::min(kBlockBytes, file->size() - offset));
    TESSERA_RETURN_IF_ERROR(file->read(offset, absl::MakeSpan(block.data(), count),
                                       [] { return std::string("its lines"); }));
    const std::byte* const end = block.data() + count;
    for (const std::byte* at = block.data(); at != end;) {
      at = static_cast<const std::byte*>(std::memchr(at, '\n', static_cast<size_t>(end - at)));
      if (at == nullptr) break;
      ++at;
      if (line++ >= skip_lines) lines->starts.push_back(line_start);
      line_start = offset + (at - block.data());
    }
  }
  if (line_start < file->size() && line++ >= skip_lines) lines->starts.push_back(line_start);
  if (line < skip_lines) {
    return file->error(absl::StrCat("it has ", line, " lines; ", skip_lines, " are to be skipped"));
  }
  lines->starts.push_back(file->size());
  return lines;
}

StatusOr<Lines> find_lines(absl::Span<const std::shared_ptr<const InputFile>> files,
                           int64_t skip_lines) {
  Lines lines;
  for (const auto& file : files) {
    TESSERA_ASSIGN_OR_RETURN(std::shared_ptr<const LinesOfFile> of_file,
                             find_lines(file, skip_lines));
    lines.push_back(std::move(of_file));
  }
  return lines;
}

std::vector<int64_t> counts_of(const Lines& lines) {
  std::vector<int64_t> counts;
  for (const auto& of_file : lines) counts.push_back(of_file->size());
  return counts;
}

class LineSource : public Source {
 public:
  explicit LineSource(Lines lines) : lines_(std::move(lines)), parts_(counts_of(lines_)) {}

  std::optional<int64_t> size() const override { return parts_.size(); }
  StatusOr<Element> read(int64_t index) const override {
    const FileParts::Place place = parts_.find(index);
    const LinesOfFile& of_file = *lines_[place.file];
    const int64_t begin = of_file.starts[place.index];
    std::string line(static_cast<size_t>(of_file.starts[place.index + 1] - begin), '\0');
    const auto name = [&] { return absl::StrCat("line ", of_file.first_line + place.index + 1); };
    TESSERA_RETURN_IF_ERROR(of_file.file->read(
        begin, absl::MakeSpan(reinterpret_cast<std::byte*>(line.data()), line.size()), name));
    absl::string_view text = line;
    if (!text.empty() && text.back() == '\n') text.remove_suffix(1);
    if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
    StatusOr<Element> element = parse(text);
    if (!element.ok()) {
      return of_file.file->error(absl::StrCat(name(), ", ", element.status().message()));
    }
    return element;
  }
  std::vector<std::string> files() const override {
    std::vector<std::string> files;
    for (const auto& of_file : lines_) files.push_back(of_file->file->path());
    return files;
  }
  StatusOr<std::shared_ptr<const Source>> with_files(
      absl::Span<const int64_t> keep) const override {
    Lines kept;
    for (const int64_t i : keep) kept.push_back(lines_[i]);
    return with_lines(std::move(kept));
  }

 private:
  virtual StatusOr<Element> parse(absl::string_view line) const = 0;
  virtual std::shared_ptr<const Source> with_lines(Lines lines) const = 0;

  const Lines lines_;
  const FileParts parts_;
};

class TextSource : public LineSource {
 public:
  using LineSource::LineSource;
  std::vector<TensorSpec> spec() const override { return {{DType::kUint8, {-1}}}; }

 private:
  StatusOr<Element> parse(absl::string_view line) const override {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(line.data());
    return Element{HostArray::of<uint8_t>(absl::MakeConstSpan(bytes, line.size()),
                                          {static_cast<int64_t>(line.size())})};
  }
  std::shared_ptr<const Source> with_lines(Lines lines) const override {
    return std::make_shared<const TextSource>(std::move(lines));
  }
};

class CsvSource : public LineSource {
 public:
  CsvSource(Lines lines, std::vector<DType> columns)
      : LineSource(std::move(lines)), columns_(std::move(columns)) {}
  std::vector<TensorSpec> spec() const override {
    std::vector<TensorSpec> spec;
    for (const DType column : columns_) spec.push_back({column, {}});
    return spec;
  }

 private:
  StatusOr<Element> parse(absl::string_view line) const override {
    return parse_csv_line(line, columns_);
  }
  std::shared_ptr<const Source> with_lines(Lines lines) const override {
    return std::make_shared<const CsvSource>(std::move(lines), columns_);
  }

  const std::vector<DType> columns_;
};

// Takes the next field from the front of a line. The comma after it stays. A field in quotes writes
// each inner quote twice.
StatusOr<std::string> take_field(absl::string_view* line) {
  if (line->empty() || line->front() != '"') {
    const size_t end = std::min(line->find(','), line->size());
    std::string field(line->substr(0, end));
    line->remove_prefix(end);
    if (field.find('"') != std::string::npos) {
      return absl::InvalidArgumentError("a quote inside a field that does not begin with one");
    }
    return field;
  }
  std::string field;
  for (size_t i = 1; i < line->size(); ++i) {
    if ((*line)[i] != '"') {
      field.push_back((*line)[i]);
    } else if (i + 1 < line->size() && (*line)[i + 1] == '"') {
      field.push_back('"');
      ++i;
    } else {
      line->remove_prefix(i + 1);
      if (!line->empty() && line->front() != ',') {
        return absl::InvalidArgumentError("text after a closing quote");
      }
      return field;
    }
  }
  return absl::InvalidArgumentError("a quote that is not closed in this line");
}

template <class T>
bool parse_integer(absl::string_view field, T* value) {
  int64_t wide = 0;
  if (!absl::SimpleAtoi(field, &wide)) return false;
  if (wide < std::numeric_limits<T>::min() || wide > std::numeric_limits<T>::max()) return false;
  *value = static_cast<T>(wide);
  return true;
}

// Reads a finite number that the type can hold.
template <class T>
bool parse_value(absl::string_view field, T* value) {
  if constexpr (std::is_same_v<T, bool>) {
    *value = field == "1" || field == "true";
    return *value || field == "0" || field == "false";
  } else if constexpr (std::is_integral_v<T>) {
    return parse_integer(field, value);
  } else if constexpr (std::is_same_v<T, double>) {
    return absl::SimpleAtod(field, value) && std::isfinite(*value);
  } else {
    float single = 0;
    if constexpr (std::is_same_v<T, float>) {
      if (!absl::SimpleAtof(field, &single)) return false;
    } else {
      double real = 0;
      if (!absl::SimpleAtod(field, &real)) return false;
      single = kernels::odd_float(real);  // halves are rounded once
    }
    *value = static_cast<T>(single);
    return std::isfinite(static_cast<float>(*value));
  }
}

}  // namespace

StatusOr<Element> parse_csv_line(absl::string_view line, absl::Span<const DType> columns) {
  Element element;
  for (size_t column = 0;; ++column) {
    StatusOr<std::string> field = take_field(&line);
    const std::string where = absl::StrCat("column ", column + 1);
    if (!field.ok()) return with_context(field.status(), where);
    if (column < columns.size()) {
      const bool parsed = visit_dtype(columns[column], [&]<class T>() {
        T value{};
        const bool is_value = parse_value(*field, &value);
        element.push_back(HostArray::scalar(value));
        return is_value;
      });
      if (!parsed) {
        return absl::InvalidArgumentError(
            absl::StrCat(where, ": ", in_quotes(*field), " is not a ",
                         is_floating_point(columns[column]) ? "finite value of " : "value of ",
                         dtype_name(columns[column])));
      }
    }
    if (line.empty()) {
      if (column + 1 == columns.size()) return element;
      return absl::InvalidArgumentError(
          absl::StrCat("it has ", column + 1, " columns, not ", columns.size()));
    }
    line.remove_prefix(1);
  }
}

StatusOr<NamedSource> text_source(const std::vector<std::string>& files) {
  TESSERA_ASSIGN_OR_RETURN(const auto opened, open_files(files));
  TESSERA_ASSIGN_OR_RETURN(Lines lines, find_lines(opened, 0));
  return NamedSource{std::make_shared<const TextSource>(std::move(lines)),
                     hash_of_files("text_lines", opened)};
}

StatusOr<NamedSource> csv_source(const std::vector<std::string>& files,
                                 const std::vector<DType>& columns, const CsvOptions& options) {
  if (columns.empty()) {
    return absl::InvalidArgumentError("csv: no columns are given; give the dtype of each column");
  }
  for (const DType column : columns) {
    TESSERA_RETURN_IF_ERROR(validate_dtype(column));
  }
  if (options.skip_lines < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("csv: skip_lines is ", options.skip_lines, "; give 0 or more"));
  }
  TESSERA_ASSIGN_OR_RETURN(const auto opened, open_files(files));
  for (const auto& file : opened) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t front, front_of(*file));
    if (file->size() == front) return file->error("it is empty");
  }
  TESSERA_ASSIGN_OR_RETURN(Lines lines, find_lines(opened, options.skip_lines));
  uint64_t hash = hash_of_files("csv", opened);
  std::vector<int64_t> numbers = {options.skip_lines};
  for (const DType column : columns) numbers.push_back(static_cast<int64_t>(column));
  hash = stable_hash(absl::MakeConstSpan(numbers), hash);
  return NamedSource{std::make_shared<const CsvSource>(std::move(lines), columns), hash};
}

}  // namespace tessera::input::internal
