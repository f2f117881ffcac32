# SPDX-License-Identifier: Apache-2.0
# What makes `find_package(Gemini)` work after `cmake --install`.
include(CMakePackageConfigHelpers)
set(gemini_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Gemini)
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/GeminiConfig.cmake.in ${PROJECT_BINARY_DIR}/GeminiConfig.cmake
  INSTALL_DESTINATION ${gemini_package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/GeminiConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(EXPORT GeminiTargets NAMESPACE gemini:: DESTINATION ${gemini_package_dir})
install(FILES ${PROJECT_BINARY_DIR}/GeminiConfig.cmake
              ${PROJECT_BINARY_DIR}/GeminiConfigVersion.cmake
              ${PROJECT_SOURCE_DIR}/cmake/GeminiLibTorch.cmake
        DESTINATION ${gemini_package_dir})
# Where systemd looks below /usr and /usr/local.
install(FILES ${PROJECT_SOURCE_DIR}/packaging/geminid.service DESTINATION lib/systemd/user)
install(FILES ${PROJECT_SOURCE_DIR}/packaging/geminid@.service DESTINATION lib/systemd/system)
install(CODE "set(gemini_bindir ${CMAKE_INSTALL_BINDIR})")
install(SCRIPT ${PROJECT_SOURCE_DIR}/cmake/InstallUnits.cmake)
install(FILES ${PROJECT_SOURCE_DIR}/packaging/geminid-gpu.conf DESTINATION ${CMAKE_INSTALL_DATADIR}/gemini)
