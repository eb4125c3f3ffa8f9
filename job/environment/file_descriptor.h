// SPDX-License-Identifier: Apache-2.0
//
// FileDescriptor: owns one descriptor of the operating system and closes it.
#ifndef TESSERA_JOB_ENVIRONMENT_FILE_DESCRIPTOR_H_
#define TESSERA_JOB_ENVIRONMENT_FILE_DESCRIPTOR_H_

#include <unistd.h>

#include <utility>

namespace tessera {

// Move-only. is_open() is false for the default object and after close().
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() { close(); }

  bool is_open() const { return fd_ >= 0; }
  int get() const { return fd_; }
  // Gives the descriptor to the caller.
  int release() { return std::exchange(fd_, -1); }
  void close() {
    if (is_open()) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

// Raises this process's limit of descriptors as far as permitted: clients of one host have several
// for each other, and a coordinator one for each client. Programs that use select(2) must accept
// descriptors above 1023.
void raise_descriptor_limit();

}  // namespace tessera

#endif  // TESSERA_JOB_ENVIRONMENT_FILE_DESCRIPTOR_H_
